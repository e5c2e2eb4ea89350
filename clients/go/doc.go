// Package tidegate is a client of Tidegate and of other servers of Envoy's Rate Limit Service, with net/http
// middleware and gRPC interceptors. A rejected request is answered immediately, with 429 or RESOURCE_EXHAUSTED and
// Retry-After. clients/README.md describes behaviour, mapping, logs, and bounds, which are the same in all
// languages.
package tidegate
