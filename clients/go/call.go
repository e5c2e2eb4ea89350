package tidegate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

// ValueBytesMax is the maximum length of a value in bytes. A longer value is cut there: values with the same start
// then share a counter. Dropping it or failing the call would let its sender escape the limit.
const ValueBytesMax = 4096

// Entry is a key and its value, which may be any bytes.
type Entry struct{ Key, Value string }

// Descriptor has the keys and values by which the policy finds a limit, in the order of the policy's levels.
type Descriptor struct {
	Entries []Entry
	// Hits of this descriptor; nil means those of the call. 0 only checks the limit; more than 0 is a bill, which a
	// policy with `charge: billed` counts even beyond the limit.
	Hits *uint64
	// Hold takes slots of a concurrency limit, which Client.Hold and the middleware release.
	Hold bool
}

// Call is one decision: all descriptors are decided together.
type Call struct {
	Descriptors []Descriptor
	// Hits of all descriptors that do not name their own; 0 means 1.
	Hits uint32
}

// NewCall returns a call that costs one hit, with one descriptor of these entries.
func NewCall(entries ...Entry) Call {
	return Call{Descriptors: []Descriptor{{Entries: entries}}, Hits: 1}
}

// mistake is a descriptor without entries, which servers would let pass without a word; nil if there is none.
func (c Call) mistake() *Failure {
	for index, descriptor := range c.Descriptors {
		if len(descriptor.Entries) == 0 {
			message := fmt.Sprintf("descriptors[%d].entries: must not be empty", index)
			return &Failure{Code: codes.InvalidArgument, Message: message}
		}
	}
	return nil
}

func (c Call) holds() bool {
	return slices.ContainsFunc(c.Descriptors, func(d Descriptor) bool { return d.Hold })
}

// checkMessage asks for a decision.
func (c Call) checkMessage(domain, holder string) []byte {
	var encoded [][]byte
	for _, descriptor := range c.Descriptors {
		encoded = append(encoded, encodeDescriptor(descriptor.entries(holder), descriptor.Hits, false))
	}
	return encode(domain, encoded, c.Hits)
}

// releaseMessage releases the slots of the holder.
func (c Call) releaseMessage(domain, holder string) []byte {
	one := uint64(1)
	var encoded [][]byte
	for _, descriptor := range c.Descriptors {
		if descriptor.Hold {
			encoded = append(encoded, encodeDescriptor(descriptor.entries(holder), &one, true))
		}
	}
	return encode(domain, encoded, 0)
}

// refundMessage refunds what the call charged; nil if it charged nothing. Slots are released, not refunded.
func (c Call) refundMessage(domain string) []byte {
	hits := uint64(max(c.Hits, 1))
	var encoded [][]byte
	for _, descriptor := range c.Descriptors {
		charged := descriptor.Hits
		if charged == nil {
			charged = &hits
		}
		if !descriptor.Hold && *charged != 0 {
			encoded = append(encoded, encodeDescriptor(descriptor.entries(""), charged, true))
		}
	}
	if encoded == nil {
		return nil
	}
	return encode(domain, encoded, 0)
}

// reserveMessage holds the amount, or settles it. A ttl of 0 is that of the limits.
func (c Call) reserveMessage(domain, id string, amount uint64, ttl time.Duration) []byte {
	var encoded [][]byte
	for _, descriptor := range c.Descriptors {
		encoded = append(encoded, encodeDescriptor(descriptor.entries(""), nil, false))
	}
	return encodeReserve(domain, id, encoded, amount, uint64(math.Ceil(ttl.Seconds())))
}

// reserveMistake is what a reservation must not have; nil if there is nothing.
func (c Call) reserveMistake(estimate Estimate) *Failure {
	for index, descriptor := range c.Descriptors {
		if descriptor.Hits != nil || descriptor.Hold {
			message := fmt.Sprintf("descriptors[%d]: must not have Hits or Hold in a reservation", index)
			return &Failure{Code: codes.InvalidArgument, Message: message}
		}
	}
	if estimate.TTL < 0 || estimate.OnUnsettled < ChargeEstimate || estimate.OnUnsettled > KeepHold {
		message := "TTL must not be negative, and OnUnsettled must be ChargeEstimate, ReleaseHold, or KeepHold"
		return &Failure{Code: codes.InvalidArgument, Message: message}
	}
	return c.mistake()
}

func (d Descriptor) entries(holder string) []Entry {
	entries := make([]Entry, 0, len(d.Entries)+1)
	for _, entry := range d.Entries {
		entry.Value = entry.Value[:min(len(entry.Value), ValueBytesMax)]
		entries = append(entries, entry)
	}
	if d.Hold {
		entries = append(entries, Entry{slotKey, holder})
	}
	return entries
}
