"""Messages of Envoy's Rate Limit Service, as far as this client uses them. Unknown fields are skipped.

They are described here and live in a descriptor pool of their own. Generated modules would register
`envoy/service/ratelimit/v3/rls.proto` in the process-wide pool, which fails if another package, such as a
build of Envoy's API, has registered another version of that file. Texts are bytes: the encoding is the same,
and a header value that is not UTF-8 is counted instead of making the call fail.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

CHECK = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CHECK_MANY = "/tidegate.v1.Limits/Check"
# Not the entries `tidegate.hold` and `tidegate.settle` of Envoy's service, which would save the two messages: they have no
# ttl, their id would have to be made here, and a server that does not know them finds no limit and lets the call pass.
RESERVE = "/tidegate.v1.Limits/Reserve"
SETTLE = "/tidegate.v1.Limits/Settle"
# `overall_code` of a rejected request.
OVER_LIMIT = 2

_PACKAGE = "tidegate_client"
_TYPES = descriptor_pb2.FieldDescriptorProto
# Name, number, and type of each field; a message's name as the type means that message. `*` is repeated.
_FIELDS = {
    "Entry": [("key", 1, "bytes"), ("value", 2, "bytes")],
    "UInt64Value": [("value", 1, "uint64")],
    "RateLimitDescriptor": [
        ("entries", 1, "*Entry"), ("hits_addend", 3, "UInt64Value"), ("is_negative_hits", 4, "bool")],
    "RateLimitRequest": [
        ("domain", 1, "string"), ("descriptors", 2, "*RateLimitDescriptor"), ("hits_addend", 3, "uint32")],
    "HeaderValue": [("key", 1, "bytes"), ("value", 2, "bytes")],
    "RateLimitResponse": [
        ("overall_code", 1, "int32"), ("response_headers_to_add", 3, "*HeaderValue"),
        ("request_headers_to_add", 4, "*HeaderValue"), ("raw_body", 5, "bytes")],
    # Of tidegate.v1.Limits. A result has one of the two; Status is google.rpc.Status.
    "CheckRequest": [("requests", 1, "*RateLimitRequest")],
    "CheckResponse": [("results", 1, "*CheckResult")],
    "CheckResult": [("response", 1, "RateLimitResponse"), ("error", 2, "Status")],
    "Status": [("code", 1, "int32"), ("message", 2, "string")],
    # Also a SettleRequest, which has the same numbers and no ttl.
    "ReserveRequest": [
        ("domain", 1, "string"), ("descriptors", 2, "*RateLimitDescriptor"), ("amount", 3, "uint64"),
        ("ttl", 4, "Duration"), ("id", 5, "bytes")],
    "Duration": [("seconds", 1, "int64")],
    "ReserveResponse": [("id", 1, "bytes"), ("response", 2, "RateLimitResponse")],
}


def _classes():
    file = descriptor_pb2.FileDescriptorProto(name="tidegate_client.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label = _TYPES.LABEL_REPEATED if kind.startswith("*") else _TYPES.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            kind = kind.removeprefix("*")
            if kind in _FIELDS:
                added.type, added.type_name = _TYPES.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = _TYPES.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _FIELDS)
    return {descriptor.name: message_factory.GetMessageClass(descriptor) for descriptor in found}


_MADE = _classes()
RateLimitRequest = _MADE["RateLimitRequest"]
RateLimitResponse = _MADE["RateLimitResponse"]
CheckRequest = _MADE["CheckRequest"]
CheckResponse = _MADE["CheckResponse"]
ReserveRequest = _MADE["ReserveRequest"]
ReserveResponse = _MADE["ReserveResponse"]
