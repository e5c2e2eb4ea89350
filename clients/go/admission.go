package tidegate

import "context"

// Admission says how a request was admitted.
type Admission struct {
	client *Client
	call   Call
	// Decision that let the request pass.
	Decision Decision
}

// Refund refunds what the request charged, for example because its work failed. The error is a *Failure: the service
// may not have refunded it.
func (a *Admission) Refund(ctx context.Context) error {
	if a.Decision.Outcome != Allowed {
		return nil
	}
	return a.client.Refund(ctx, a.call)
}

type admissionKey struct{}

// FromContext returns how the request was admitted; nil outside the middleware and the interceptors.
func FromContext(ctx context.Context) *Admission {
	admission, _ := ctx.Value(admissionKey{}).(*Admission)
	return admission
}

func (c *Client) admit(ctx context.Context, call Call, decision Decision) context.Context {
	return context.WithValue(ctx, admissionKey{}, &Admission{c, call, decision})
}
