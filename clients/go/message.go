package tidegate

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Messages of Envoy's Rate Limit Service, as far as this client uses them. They are encoded by hand: generated
// types register their file names in the whole process, which panics if another package has registered them, and
// reject header values that are not UTF-8, which would make the call fail instead of counting them.

const (
	method     = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	methodMany = "/tidegate.v1.Limits/Check"
	// Not the entries `tidegate.hold` and `tidegate.settle` of Envoy's service, which would save two messages: they have no
	// ttl, their id would have to be made here, and a server that does not know them finds no limit and lets the call pass.
	methodReserve = "/tidegate.v1.Limits/Reserve"
	methodSettle  = "/tidegate.v1.Limits/Settle"
)

// overLimit is the overall_code of a rejected request.
const overLimit = 2

// slotKey is the key of the entry that names the holder of a concurrency slot.
const slotKey = "tidegate.slot"

var errMalformed = errors.New("the response is not an encoded RateLimitResponse")

type header struct{ name, value string }

type response struct {
	code    uint64
	headers []header
	// marks are the headers for the upstream.
	marks []header
	body  []byte
}

// codec passes encoded requests on, and decodes responses.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(value any) ([]byte, error) {
	message, ok := value.([]byte)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", value)
	}
	return message, nil
}

func (codec) Unmarshal(data []byte, value any) error {
	switch into := value.(type) {
	case *response:
		return into.decode(data)
	case *batchResponse:
		return into.decode(data)
	case *reserveResponse:
		return into.decode(data)
	}
	return fmt.Errorf("unexpected %T", value)
}

func (into *response) decode(data []byte) error {
	return eachField(data, func(number protowire.Number, varint uint64, content []byte) error {
		switch number {
		case 1:
			into.code = varint
		case 3:
			return appendHeader(&into.headers, content)
		case 4:
			return appendHeader(&into.marks, content)
		case 5:
			into.body = append([]byte(nil), content...)
		}
		return nil
	})
}

// appendHeader appends an encoded HeaderValue.
func appendHeader(headers *[]header, data []byte) error {
	var found header
	err := eachField(data, func(number protowire.Number, _ uint64, content []byte) error {
		switch number {
		case 1:
			found.name = string(content)
		case 2:
			found.value = string(content)
		}
		return nil
	})
	*headers = append(*headers, found)
	return err
}

// batchResponse is a CheckResponse of tidegate.v1.Limits.
type batchResponse struct{ results []result }

// result of one call: a response or, if that is nil, an error.
type result struct {
	response *response
	code     uint64
	message  string
}

func (into *batchResponse) decode(data []byte) error {
	return eachField(data, func(number protowire.Number, _ uint64, content []byte) error {
		if number != 1 {
			return nil
		}
		into.results = append(into.results, result{})
		last := &into.results[len(into.results)-1]
		return eachField(content, func(number protowire.Number, _ uint64, content []byte) error {
			switch number {
			case 1:
				last.response = new(response)
				return last.response.decode(content)
			case 2: // a google.rpc.Status
				return eachField(content, func(number protowire.Number, varint uint64, content []byte) error {
					switch number {
					case 1:
						last.code = varint
					case 2:
						last.message = string(content)
					}
					return nil
				})
			}
			return nil
		})
	})
}

// encodeBatch encodes a CheckRequest.
func encodeBatch(requests [][]byte) []byte {
	var message []byte
	for _, request := range requests {
		message = protowire.AppendTag(message, 1, protowire.BytesType)
		message = protowire.AppendBytes(message, request)
	}
	return message
}

// reserveResponse is a ReserveResponse of tidegate.v1.Limits.
type reserveResponse struct {
	id       string
	response response
}

func (into *reserveResponse) decode(data []byte) error {
	return eachField(data, func(number protowire.Number, _ uint64, content []byte) error {
		switch number {
		case 1:
			into.id = string(content)
		case 2:
			return into.response.decode(content)
		}
		return nil
	})
}

// encodeReserve encodes a ReserveRequest, or a SettleRequest, which has the same numbers and no ttl.
func encodeReserve(domain, id string, descriptors [][]byte, amount, ttlSeconds uint64) []byte {
	message := encode(domain, descriptors, 0)
	message = protowire.AppendVarint(protowire.AppendTag(message, 3, protowire.VarintType), amount)
	if ttlSeconds > 0 { // a google.protobuf.Duration
		ttl := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), ttlSeconds)
		message = protowire.AppendBytes(protowire.AppendTag(message, 4, protowire.BytesType), ttl)
	}
	return appendBytes(message, 5, id)
}

// eachField calls see for the fields that are numbers or have a length; it skips the others.
func eachField(data []byte, see func(protowire.Number, uint64, []byte) error) error {
	for len(data) > 0 {
		number, kind, length := protowire.ConsumeTag(data)
		if length < 0 {
			return errMalformed
		}
		data = data[length:]
		var varint uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			varint, length = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			content, length = protowire.ConsumeBytes(data)
		default:
			length = protowire.ConsumeFieldValue(number, kind, data)
		}
		if length < 0 {
			return errMalformed
		}
		data = data[length:]
		if err := see(number, varint, content); err != nil {
			return err
		}
	}
	return nil
}

// encode encodes a RateLimitRequest.
func encode(domain string, descriptors [][]byte, hits uint32) []byte {
	message := appendBytes(nil, 1, domain)
	for _, descriptor := range descriptors {
		message = protowire.AppendTag(message, 2, protowire.BytesType)
		message = protowire.AppendBytes(message, descriptor)
	}
	if hits > 0 {
		message = protowire.AppendTag(message, 3, protowire.VarintType)
		message = protowire.AppendVarint(message, uint64(hits))
	}
	return message
}

// encodeDescriptor encodes a RateLimitDescriptor. Without hits, those of the request count.
func encodeDescriptor(entries []Entry, hits *uint64, negative bool) []byte {
	var message []byte
	for _, entry := range entries {
		encoded := appendBytes(appendBytes(nil, 1, entry.Key), 2, entry.Value)
		message = protowire.AppendTag(message, 1, protowire.BytesType)
		message = protowire.AppendBytes(message, encoded)
	}
	if hits != nil {
		// A google.protobuf.UInt64Value: present and 0 is different from absent.
		value := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), *hits)
		message = protowire.AppendTag(message, 3, protowire.BytesType)
		message = protowire.AppendBytes(message, value)
	}
	if negative {
		message = protowire.AppendTag(message, 4, protowire.VarintType)
		message = protowire.AppendVarint(message, 1)
	}
	return message
}

func appendBytes(message []byte, number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, number, protowire.BytesType), text)
}
