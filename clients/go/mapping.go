package tidegate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of a mapping. With ValueBytesMax, the largest call has 512 KiB; the service takes 1 MiB.
const (
	descriptorsMax    = 16
	entriesMax        = 8
	mappingBytesMax   = 64 * 1024
	trustedProxiesMax = 16
	// hitsMax is the maximum of hits that a header can ask for.
	hitsMax = 1_000_000
	// ipv6PrefixMax: all bits.
	ipv6PrefixMax = 128
)

// IPv6Prefix is the number of bits by which IPv6 addresses are grouped by default: a customer usually has a network of
// 64 bits or more.
const IPv6Prefix = 64

var errPrefix = errors.New("ipv6_prefix: must be 1 to 128")

// Mapping says which descriptors a request has. clients/README.md describes its form, which is the same for all
// languages; clients/vectors/mapping.json holds them equal.
type Mapping struct {
	trustedProxies, ipv6Prefix int
	hits                       uint32
	hitsHeader                 string
	descriptors                []template
}

type template struct {
	hold    bool
	entries []templateEntry
}

type templateEntry struct {
	key string
	// value returns false if the request has no such value.
	value func(*parts) (string, bool)
}

// parts of a request that a mapping reads.
type parts struct {
	method string
	// path is decoded, without the query.
	path string
	// header returns all headers of a name.
	header func(name string) []string
	// peer is the address of the other end of the connection; invalid if it is not known.
	peer netip.Addr
	// address is the text of the caller's address, which the mapping fills in; empty if it is not known.
	address string
}

type mappingFile struct {
	TrustedProxies int              `json:"trusted_proxies"`
	IPv6Prefix     *int             `json:"ipv6_prefix"`
	Hits           *uint32          `json:"hits"`
	HitsHeader     *string          `json:"hits_header"`
	Descriptors    []descriptorFile `json:"descriptors"`
}

type descriptorFile struct {
	Hold    bool        `json:"hold"`
	Entries []entryFile `json:"entries"`
}

type entryFile struct {
	Key           string  `json:"key"`
	Value         *string `json:"value"`
	Header        *string `json:"header"`
	PathSegment   *uint32 `json:"path_segment"`
	PathPrefix    *string `json:"path_prefix"`
	Method        bool    `json:"method"`
	ClientAddress bool    `json:"client_address"`
}

// ParseMapping reads a mapping from JSON. The error says what is wrong with it, and where.
func ParseMapping(text string) (*Mapping, error) {
	mapping, err := parseMapping(text)
	if err != nil {
		return nil, fmt.Errorf("mapping: %w", err)
	}
	return mapping, nil
}

func parseMapping(text string) (*Mapping, error) {
	if len(text) > mappingBytesMax {
		return nil, fmt.Errorf("must have at most %d bytes", mappingBytesMax)
	}
	var file mappingFile
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("must have nothing after its end")
	}
	mapping := &Mapping{trustedProxies: file.TrustedProxies, ipv6Prefix: IPv6Prefix, hits: 1}
	if file.TrustedProxies < 0 || file.TrustedProxies > trustedProxiesMax {
		return nil, fmt.Errorf("trusted_proxies: must be at most %d", trustedProxiesMax)
	}
	if file.IPv6Prefix != nil {
		if mapping.ipv6Prefix = *file.IPv6Prefix; mapping.ipv6Prefix < 1 || mapping.ipv6Prefix > ipv6PrefixMax {
			return nil, errPrefix
		}
	}
	switch {
	case file.Hits != nil && file.HitsHeader != nil:
		return nil, errors.New("hits and hits_header cannot be combined: remove one")
	case file.Hits != nil:
		if mapping.hits = *file.Hits; mapping.hits < 1 || mapping.hits > hitsMax {
			return nil, fmt.Errorf("hits: must be 1 to %d", hitsMax)
		}
	case file.HitsHeader != nil:
		if mapping.hitsHeader = *file.HitsHeader; !isHeaderName(strings.ToLower(mapping.hitsHeader)) {
			return nil, fmt.Errorf("hits_header: %q is not the name of a header", mapping.hitsHeader)
		}
	}
	if count := len(file.Descriptors); count < 1 || count > descriptorsMax {
		return nil, fmt.Errorf("descriptors: must be a list of 1 to %d", descriptorsMax)
	}
	for index, descriptor := range file.Descriptors {
		place := fmt.Sprintf("descriptors[%d].entries", index)
		if count := len(descriptor.Entries); count < 1 || count > entriesMax {
			return nil, fmt.Errorf("%s: must be a list of 1 to %d", place, entriesMax)
		}
		compiled := template{hold: descriptor.Hold}
		for index, entry := range descriptor.Entries {
			value, err := entry.compile(fmt.Sprintf("%s[%d]", place, index))
			if err != nil {
				return nil, err
			}
			compiled.entries = append(compiled.entries, templateEntry{entry.Key, value})
		}
		mapping.descriptors = append(mapping.descriptors, compiled)
	}
	return mapping, nil
}

func (e entryFile) compile(place string) (func(*parts) (string, bool), error) {
	if e.Key == "" {
		return nil, fmt.Errorf("%s.key: must not be empty", place)
	}
	var sources []func(*parts) (string, bool)
	if e.Value != nil {
		value := *e.Value
		sources = append(sources, func(*parts) (string, bool) { return value, true })
	}
	if e.Header != nil {
		name := *e.Header
		if !isHeaderName(strings.ToLower(name)) {
			return nil, fmt.Errorf("%s.header: %q is not the name of a header", place, name)
		}
		// Of several headers the first, as in Envoy.
		sources = append(sources, func(request *parts) (string, bool) {
			values := request.header(name)
			if len(values) == 0 {
				return "", false
			}
			return strings.Trim(values[0], " \t"), true
		})
	}
	if e.PathSegment != nil {
		index := int(*e.PathSegment)
		sources = append(sources, func(request *parts) (string, bool) {
			segments := strings.FieldsFunc(request.path, func(r rune) bool { return r == '/' })
			if index >= len(segments) {
				return "", false
			}
			return segments[index], true
		})
	}
	if e.PathPrefix != nil {
		prefix := *e.PathPrefix
		if !strings.HasPrefix(prefix, "/") {
			return nil, fmt.Errorf("%s.path_prefix: must start with /", place)
		}
		sources = append(sources, func(request *parts) (string, bool) {
			rest, found := strings.CutPrefix(request.path, prefix)
			whole := rest == "" || strings.HasPrefix(rest, "/") || strings.HasSuffix(prefix, "/")
			return prefix, found && whole
		})
	}
	if e.Method {
		sources = append(sources, func(request *parts) (string, bool) { return request.method, true })
	}
	if e.ClientAddress {
		sources = append(sources, func(request *parts) (string, bool) {
			return request.address, request.address != ""
		})
	}
	if len(sources) != 1 {
		return nil, fmt.Errorf("%s: must have exactly one of value, header, path_segment, path_prefix, method, client_address",
			place)
	}
	return sources[0], nil
}

// call returns the call for a request. A descriptor whose value is missing is left out, as in Envoy; a call without
// descriptors passes.
func (m *Mapping) call(request parts) Call {
	request.address = m.clientAddress(&request)
	call := Call{Hits: m.hitsOf(&request)}
	for _, template := range m.descriptors {
		descriptor := Descriptor{Hold: template.hold}
		for _, entry := range template.entries {
			value, found := entry.value(&request)
			if !found {
				break
			}
			descriptor.Entries = append(descriptor.Entries, Entry{entry.key, value})
		}
		if len(descriptor.Entries) == len(template.entries) {
			call.Descriptors = append(call.Descriptors, descriptor)
		}
	}
	return call
}

// hitsOf returns one hit without a number in the header: the request is counted all the same.
func (m *Mapping) hitsOf(request *parts) uint32 {
	if m.hitsHeader == "" {
		return m.hits
	}
	values := request.header(m.hitsHeader)
	if len(values) == 0 {
		return 1
	}
	text := strings.Trim(values[0], " \t")
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' }
	if text == "" || strings.TrimFunc(text, isDigit) != "" {
		return 1
	}
	hits, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return hitsMax
	}
	return uint32(min(max(hits, 1), hitsMax))
}

// clientAddress returns the address from X-Forwarded-For that the outermost trusted proxy saw, otherwise that of the
// connection.
func (m *Mapping) clientAddress(request *parts) string {
	var address netip.Addr
	if m.trustedProxies > 0 {
		addresses := strings.Split(strings.Join(request.header("x-forwarded-for"), ","), ",")
		if skip := len(addresses) - m.trustedProxies; skip >= 0 {
			address = parseAddress(strings.Trim(addresses[skip], " \t"))
		}
	}
	if !address.IsValid() {
		address = request.peer
	}
	if !address.IsValid() {
		return ""
	}
	return networkText(address, m.ipv6Prefix)
}

// AddressEntry returns the entry for a caller's address, such as {"remote_address", "2001:db8::/64"}.
//
// An IPv6 address is cut to ipv6Prefix bits, usually IPv6Prefix, because a caller can usually choose among those of its
// network. An IPv4 address is kept whole, even when it is written as IPv6. A prefix that is not 1 to 128 is an error, as
// is an invalid address.
func AddressEntry(key string, address netip.Addr, ipv6Prefix int) (Entry, error) {
	switch {
	case ipv6Prefix < 1 || ipv6Prefix > ipv6PrefixMax:
		return Entry{}, errPrefix
	case !address.IsValid():
		return Entry{}, errors.New("address: must be valid, not the zero netip.Addr")
	}
	return Entry{key, networkText(address, ipv6Prefix)}, nil
}

func networkText(address netip.Addr, ipv6Prefix int) string {
	address = address.Unmap().WithZone("")
	if address.Is4() || ipv6Prefix == ipv6PrefixMax {
		return address.String()
	}
	network, _ := address.Prefix(ipv6Prefix) // fails for lengths above 128 only
	return network.String()
}

// parseAddress reads an address as in X-Forwarded-For, with or without a port.
func parseAddress(text string) netip.Addr {
	if address, err := netip.ParseAddr(text); err == nil {
		return address
	}
	if address, err := netip.ParseAddrPort(text); err == nil {
		return address.Addr()
	}
	if inner, found := strings.CutPrefix(text, "["); found {
		if inner, found = strings.CutSuffix(inner, "]"); found {
			address, _ := netip.ParseAddr(inner)
			return address
		}
	}
	return netip.Addr{}
}
