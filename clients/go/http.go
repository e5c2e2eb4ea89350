package tidegate

import (
	"net/http"
	"net/netip"
	"strconv"
)

// Middleware limits the requests of a handler.
//
// A rejected request is answered with 429 and the headers and the body of the decision. Without a decision,
// Config.OnFailure says whether the request passes or is answered with 503. Slots are released when the handler returns.
// It panics if the mapping is nil: otherwise each request would.
func (c *Client) Middleware(mapping *Mapping) func(http.Handler) http.Handler {
	mapping.mustExist()
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			peer, _ := netip.ParseAddrPort(r.RemoteAddr) // invalid for a Unix socket
			call := mapping.call(parts{method: r.Method, path: r.URL.Path, header: r.Header.Values, peer: peer.Addr()})
			decision, release := c.Hold(r.Context(), call)
			defer release()
			for name, values := range decision.Header {
				for _, value := range values {
					w.Header().Add(name, value)
				}
			}
			if decision.Passes {
				next.ServeHTTP(w, r.WithContext(c.admit(r.Context(), call, decision)))
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(decision.Body)))
			if decision.Outcome == Rejected {
				w.WriteHeader(http.StatusTooManyRequests)
			} else {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = w.Write(decision.Body) // the client may be gone
		})
	}
}

func (m *Mapping) mustExist() {
	if m == nil {
		panic("tidegate: the mapping must not be nil: use ParseMapping")
	}
}
