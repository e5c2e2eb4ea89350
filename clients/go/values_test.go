package tidegate

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

type vectors struct {
	Requests []struct {
		Name, Method, Path string
		Mapping            json.RawMessage
		Headers            [][2]string
		Peer               *string
		Descriptors        [][][2]string
		Hits               *uint32
	}
	Mistakes []struct {
		Mapping json.RawMessage
		Says    string
	}
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("../vectors/" + name)
	must(t, err)
	must(t, json.Unmarshal(text, into))
}

// raw: in the vectors, each character is one byte.
func raw(text string) string {
	var found []byte
	for _, r := range text {
		found = append(found, byte(r))
	}
	return string(found)
}

func TestDescriptorsAreThoseOfTheSharedVectors(t *testing.T) {
	var given vectors
	read(t, "mapping.json", &given)
	if len(given.Requests) < 20 {
		t.Fatal("vectors are missing")
	}
	for _, it := range given.Requests {
		path, err := url.PathUnescape(it.Path)
		must(t, err)
		request := parts{method: it.Method, path: path, header: func(name string) []string {
			var found []string
			for _, pair := range it.Headers {
				if strings.EqualFold(raw(pair[0]), name) {
					found = append(found, raw(pair[1]))
				}
			}
			return found
		}}
		if it.Peer != nil {
			request.peer = netip.MustParseAddr(*it.Peer)
		}
		call := parse(t, string(it.Mapping)).call(request)
		found := [][][2]string{}
		for _, descriptor := range call.Descriptors {
			var entries [][2]string
			for _, entry := range descriptor.Entries {
				entries = append(entries, [2]string{entry.Key, entry.Value})
			}
			found = append(found, entries)
		}
		for _, descriptor := range it.Descriptors {
			for index := range descriptor {
				descriptor[index] = [2]string{raw(descriptor[index][0]), raw(descriptor[index][1])}
			}
		}
		if !reflect.DeepEqual(found, it.Descriptors) {
			t.Errorf("%s: %q, expected %q", it.Name, found, it.Descriptors)
		}
		hits := uint32(1)
		if it.Hits != nil {
			hits = *it.Hits
		}
		if call.Hits != hits {
			t.Errorf("%s: %d hits", it.Name, call.Hits)
		}
	}
}

func TestEntriesOfAddressesAreThoseOfTheSharedVectors(t *testing.T) {
	type row struct {
		Name, Address, Value, Says string
		Prefix                     *int `json:"ipv6_prefix"`
	}
	var known struct{ Entries, Mistakes []row }
	read(t, "caller_address.json", &known)
	if len(known.Entries) < 10 {
		t.Fatal("vectors are missing")
	}
	for _, it := range append(known.Entries, known.Mistakes...) {
		prefix := IPv6Prefix
		if it.Prefix != nil {
			prefix = *it.Prefix
		}
		entry, err := AddressEntry("ip", parseAddress(it.Address), prefix)
		if it.Says == "" && (err != nil || entry != Entry{"ip", it.Value}) || it.Says != "" && (err == nil || err.Error() != it.Says) {
			t.Errorf("%+v: %+v %v", it, entry, err)
		}
	}
	for _, text := range []string{"", "localhost", "203.0.113"} {
		if _, err := AddressEntry("ip", parseAddress(text), IPv6Prefix); err == nil {
			t.Error(text)
		}
	}
	if entry, err := AddressEntry("ip", parseAddress("fe80::1%eth0"), 128); err != nil || entry.Value != "fe80::1" {
		t.Error(entry, err)
	}
}

func TestMistakesAreThoseOfTheSharedVectors(t *testing.T) {
	var given vectors
	read(t, "mapping.json", &given)
	if len(given.Mistakes) < 10 {
		t.Fatal("vectors are missing")
	}
	for _, it := range given.Mistakes {
		if _, err := ParseMapping(string(it.Mapping)); err == nil || !strings.Contains(err.Error(), it.Says) {
			t.Errorf("%s: %v, expected %s", it.Mapping, err, it.Says)
		}
	}
}

func TestRetryAfterIsReadAsInTheSharedVectors(t *testing.T) {
	var cases []struct {
		Value   string
		Now     int64
		Seconds *int64
	}
	read(t, "retry_after.json", &cases)
	if len(cases) < 8 {
		t.Fatal("vectors are missing")
	}
	for _, it := range cases {
		wait, found := retryAfter(it.Value, time.Unix(it.Now, 0))
		if found != (it.Seconds != nil) || found && int64(wait/time.Second) != *it.Seconds {
			t.Errorf("%q: %v %v", it.Value, wait, found)
		}
	}
}

func TestMarksAreThoseOfTheSharedVectors(t *testing.T) {
	var cases []struct{ Given, Marks [][2]string }
	read(t, "marks.json", &cases)
	if len(cases) < 4 {
		t.Fatal("vectors are missing")
	}
	for _, it := range cases {
		var given []header
		for _, pair := range it.Given {
			given = append(given, header{pair[0], pair[1]})
		}
		decision := decide(&response{code: 1, marks: given}, time.Now())
		for _, pair := range it.Marks {
			if decision.Marks.Get(pair[0]) != pair[1] {
				t.Errorf("%v: %v", it, decision.Marks)
			}
		}
		if len(decision.Marks) != len(it.Marks) {
			t.Errorf("%v: %v", it, decision.Marks)
		}
	}
}

func TestALongValueIsCutAndStillCounted(t *testing.T) {
	entries := Descriptor{Entries: []Entry{{"t", strings.Repeat("x", ValueBytesMax+1)}}}.entries("")
	if len(entries[0].Value) != ValueBytesMax {
		t.Error(len(entries[0].Value))
	}
}

func TestOnlyTheOverallCodeDecides(t *testing.T) {
	for code, outcome := range map[uint64]Outcome{0: Allowed, 1: Allowed, 2: Rejected, 9: Allowed} {
		decision := decide(&response{code: code, headers: []header{{"Retry-After", "3"}}, body: []byte("x")}, time.Now())
		rejected := outcome == Rejected
		if decision.Outcome != outcome || decision.Passes == rejected || decision.HasRetryAfter != rejected ||
			(len(decision.Body) > 0) != rejected {
			t.Errorf("%d: %+v", code, decision)
		}
	}
}

func TestHeadersThatWouldBreakTheResponseAreLeftOut(t *testing.T) {
	decision := decide(&response{code: 2, headers: []header{
		{":status", "200"}, {"content-length", "5"}, {"Transfer-Encoding", "chunked"}, {"grpc-status", "0"},
		{"x-split", "a\r\nset-cookie: b"}, {"", "empty"}, {"x-long", strings.Repeat("x", headerBytesMax+1)},
		{"content-type", "application/json"}, {"X-RateLimit-Limit", "5"},
	}}, time.Now())
	if len(decision.Header) != 2 || decision.Header.Get("content-type") == "" || decision.Header.Get("x-ratelimit-limit") != "5" {
		t.Error(decision.Header)
	}
}

func TestAtMostAsManyHeadersAsTheBoundAreTaken(t *testing.T) {
	many := make([]header, headersMax+5)
	for index := range many {
		many[index] = header{"x-many", "1"}
	}
	if found := decide(&response{code: 1, headers: many}, time.Now()).Header.Values("x-many"); len(found) != headersMax {
		t.Error(len(found))
	}
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte{8, 2, 26, 4, 10, 2, 'a', 'b'})
	f.Add([]byte{26, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		var found response
		if err := (codec{}).Unmarshal(data, &found); err == nil {
			decide(&found, time.Unix(0, 0))
		}
	})
}
