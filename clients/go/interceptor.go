package tidegate

import (
	"context"
	"net/netip"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

var (
	errRejected = status.Error(codes.ResourceExhausted, "rate limit exceeded")
	errFailed   = status.Error(codes.Unavailable, "the rate limit could not be checked")
)

// UnaryInterceptor limits the unary calls of a gRPC server.
//
// A rejected call is answered with RESOURCE_EXHAUSTED and the headers of the decision, such as retry-after, as
// trailers. Without a decision, Config.OnFailure says whether the call passes or is answered with UNAVAILABLE.
// It panics if the mapping is nil: otherwise each call would.
func (c *Client) UnaryInterceptor(mapping *Mapping) grpc.UnaryServerInterceptor {
	mapping.mustExist()
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		call := grpcCall(ctx, mapping, info.FullMethod)
		decision, release := c.Hold(ctx, call)
		defer release()
		if !decision.Passes {
			_ = grpc.SetTrailer(ctx, metadataOf(decision)) // fails outside a call only
			return nil, rejection(decision)
		}
		_ = grpc.SetHeader(ctx, metadataOf(decision))
		return next(c.admit(ctx, call, decision), request)
	}
}

// StreamInterceptor limits the streaming calls of a gRPC server, each as one request. It panics if the mapping is nil.
func (c *Client) StreamInterceptor(mapping *Mapping) grpc.StreamServerInterceptor {
	mapping.mustExist()
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx := stream.Context()
		call := grpcCall(ctx, mapping, info.FullMethod)
		decision, release := c.Hold(ctx, call)
		defer release()
		if !decision.Passes {
			stream.SetTrailer(metadataOf(decision))
			return rejection(decision)
		}
		_ = stream.SetHeader(metadataOf(decision))
		return next(server, &admittedStream{stream, c.admit(ctx, call, decision)})
	}
}

type admittedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *admittedStream) Context() context.Context { return s.ctx }

func grpcCall(ctx context.Context, mapping *Mapping, method string) Call {
	request := parts{method: "POST", path: method}
	received, _ := metadata.FromIncomingContext(ctx)
	request.header = received.Get
	if caller, ok := peer.FromContext(ctx); ok {
		address, _ := netip.ParseAddrPort(caller.Addr.String()) // invalid for a Unix socket
		request.peer = address.Addr()
	}
	return mapping.call(request)
}

func rejection(decision Decision) error {
	if decision.Outcome == Rejected {
		return errRejected
	}
	return errFailed
}

// metadataOf leaves out values that gRPC cannot carry, and the type of a body that gRPC does not have.
func metadataOf(decision Decision) metadata.MD {
	found := metadata.MD{}
	for name, values := range decision.Header {
		name = strings.ToLower(name)
		if name == "content-type" || strings.HasSuffix(name, "-bin") {
			continue
		}
		for _, value := range values {
			if strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
				found.Append(name, value)
			}
		}
	}
	return found
}
