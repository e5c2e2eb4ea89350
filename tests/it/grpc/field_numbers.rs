//! Every protobuf field has Envoy's number, and those of our own service keep theirs.

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

/// One line per field and per enum value of our own files.
const CONTRACT: &str = "
envoy.config.core.v3.HeaderValue.key = 1 string
envoy.config.core.v3.HeaderValue.raw_value = 3 bytes
envoy.config.core.v3.HeaderValue.value = 2 string
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.key = 1 string
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.value = 2 string
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.requests_per_unit = 1 uint32
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.unit = 2 envoy.type.v3.RateLimitUnit
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.unit_multiplier = 3 google.protobuf.UInt32Value
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.entries = 1 repeated envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.hits_addend = 3 google.protobuf.UInt64Value
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.is_negative_hits = 4 bool
envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.limit = 2 envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride
envoy.service.ratelimit.v3.RateLimitRequest.descriptors = 2 repeated envoy.extensions.common.ratelimit.v3.RateLimitDescriptor
envoy.service.ratelimit.v3.RateLimitRequest.domain = 1 string
envoy.service.ratelimit.v3.RateLimitRequest.hits_addend = 3 uint32
envoy.service.ratelimit.v3.RateLimitResponse.Code OK = 1
envoy.service.ratelimit.v3.RateLimitResponse.Code OVER_LIMIT = 2
envoy.service.ratelimit.v3.RateLimitResponse.Code UNKNOWN = 0
envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.code = 1 envoy.service.ratelimit.v3.RateLimitResponse.Code
envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.current_limit = 2 envoy.service.ratelimit.v3.RateLimitResponse.RateLimit
envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.duration_until_reset = 4 google.protobuf.Duration
envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.limit_remaining = 3 uint32
envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus.quota = 5 envoy.service.ratelimit.v3.RateLimitResponse.Quota
envoy.service.ratelimit.v3.RateLimitResponse.Quota.id = 3 string
envoy.service.ratelimit.v3.RateLimitResponse.Quota.requests = 1 uint32
envoy.service.ratelimit.v3.RateLimitResponse.Quota.valid_until = 2 google.protobuf.Timestamp
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit DAY = 4
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit HOUR = 3
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit MINUTE = 2
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit MONTH = 5
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit SECOND = 1
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit UNKNOWN = 0
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit WEEK = 7
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit YEAR = 6
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.name = 3 string
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.requests_per_unit = 1 uint32
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.unit = 2 envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit
envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.unit_multiplier = 4 google.protobuf.UInt32Value
envoy.service.ratelimit.v3.RateLimitResponse.dynamic_metadata = 6 google.protobuf.Struct
envoy.service.ratelimit.v3.RateLimitResponse.overall_code = 1 envoy.service.ratelimit.v3.RateLimitResponse.Code
envoy.service.ratelimit.v3.RateLimitResponse.quota = 7 envoy.service.ratelimit.v3.RateLimitResponse.Quota
envoy.service.ratelimit.v3.RateLimitResponse.raw_body = 5 bytes
envoy.service.ratelimit.v3.RateLimitResponse.request_headers_to_add = 4 repeated envoy.config.core.v3.HeaderValue
envoy.service.ratelimit.v3.RateLimitResponse.response_headers_to_add = 3 repeated envoy.config.core.v3.HeaderValue
envoy.service.ratelimit.v3.RateLimitResponse.statuses = 2 repeated envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus
envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit(envoy.service.ratelimit.v3.RateLimitRequest) envoy.service.ratelimit.v3.RateLimitResponse
envoy.type.v3.RateLimitUnit DAY = 4
envoy.type.v3.RateLimitUnit HOUR = 3
envoy.type.v3.RateLimitUnit MINUTE = 2
envoy.type.v3.RateLimitUnit MONTH = 5
envoy.type.v3.RateLimitUnit SECOND = 1
envoy.type.v3.RateLimitUnit UNKNOWN = 0
envoy.type.v3.RateLimitUnit YEAR = 6
google.rpc.Status.code = 1 int32
google.rpc.Status.message = 2 string
tidegate.v1.CheckRequest.requests = 1 repeated envoy.service.ratelimit.v3.RateLimitRequest
tidegate.v1.CheckResponse.results = 1 repeated tidegate.v1.CheckResult
tidegate.v1.CheckResult.error = 2 google.rpc.Status
tidegate.v1.CheckResult.response = 1 envoy.service.ratelimit.v3.RateLimitResponse
tidegate.v1.Counter.available = 4 uint64
tidegate.v1.Counter.capacity = 3 uint64
tidegate.v1.Counter.held = 6 uint64
tidegate.v1.Counter.limit = 2 string
tidegate.v1.Counter.reset_after = 5 google.protobuf.Duration
tidegate.v1.Counter.rule = 1 string
tidegate.v1.CountersRequest.descriptor = 2 envoy.extensions.common.ratelimit.v3.RateLimitDescriptor
tidegate.v1.CountersRequest.domain = 1 string
tidegate.v1.CountersResponse.counters = 1 repeated tidegate.v1.Counter
tidegate.v1.DeleteOverrideRequest.domain = 1 string
tidegate.v1.DeleteOverrideRequest.id = 2 string
tidegate.v1.Limits.Check(tidegate.v1.CheckRequest) tidegate.v1.CheckResponse
tidegate.v1.Limits.DeleteOverride(tidegate.v1.DeleteOverrideRequest) tidegate.v1.OverrideChanged
tidegate.v1.Limits.ListOverrides(tidegate.v1.ListOverridesRequest) tidegate.v1.ListOverridesResponse
tidegate.v1.Limits.Peek(envoy.service.ratelimit.v3.RateLimitRequest) envoy.service.ratelimit.v3.RateLimitResponse
tidegate.v1.Limits.ReadCounters(tidegate.v1.CountersRequest) tidegate.v1.CountersResponse
tidegate.v1.Limits.Refund(envoy.service.ratelimit.v3.RateLimitRequest) envoy.service.ratelimit.v3.RateLimitResponse
tidegate.v1.Limits.Release(tidegate.v1.ReleaseRequest) envoy.service.ratelimit.v3.RateLimitResponse
tidegate.v1.Limits.Reserve(tidegate.v1.ReserveRequest) tidegate.v1.ReserveResponse
tidegate.v1.Limits.ResetCounters(tidegate.v1.CountersRequest) tidegate.v1.CountersResponse
tidegate.v1.Limits.SetOverride(tidegate.v1.SetOverrideRequest) tidegate.v1.OverrideChanged
tidegate.v1.Limits.Settle(tidegate.v1.SettleRequest) envoy.service.ratelimit.v3.RateLimitResponse
tidegate.v1.ListOverridesRequest.after = 2 string
tidegate.v1.ListOverridesRequest.domain = 1 string
tidegate.v1.ListOverridesResponse.next = 2 string
tidegate.v1.ListOverridesResponse.overrides = 1 repeated tidegate.v1.ListedOverride
tidegate.v1.ListedOverride.id = 1 string
tidegate.v1.ListedOverride.matched = 3 bool
tidegate.v1.ListedOverride.override = 2 tidegate.v1.Override
tidegate.v1.Override.by = 10 string
tidegate.v1.Override.descriptor = 3 string
tidegate.v1.Override.domain = 1 string
tidegate.v1.Override.limit_name = 4 string
tidegate.v1.Override.mode = 7 string
tidegate.v1.Override.numbers = 5 tidegate.v1.OverrideNumbers
tidegate.v1.Override.reason = 9 string
tidegate.v1.Override.rule = 2 string
tidegate.v1.Override.scale_percent = 6 uint32
tidegate.v1.Override.until = 8 google.protobuf.Timestamp
tidegate.v1.OverrideChanged.id = 1 string
tidegate.v1.OverrideChanged.message = 2 string
tidegate.v1.OverrideNumbers.anchor = 3 string
tidegate.v1.OverrideNumbers.burst = 2 uint64
tidegate.v1.OverrideNumbers.limit = 1 uint32
tidegate.v1.ReleaseRequest.descriptors = 2 repeated envoy.extensions.common.ratelimit.v3.RateLimitDescriptor
tidegate.v1.ReleaseRequest.domain = 1 string
tidegate.v1.ReleaseRequest.id = 5 string
tidegate.v1.ReserveRequest.amount = 3 uint64
tidegate.v1.ReserveRequest.descriptors = 2 repeated envoy.extensions.common.ratelimit.v3.RateLimitDescriptor
tidegate.v1.ReserveRequest.domain = 1 string
tidegate.v1.ReserveRequest.id = 5 string
tidegate.v1.ReserveRequest.ttl = 4 google.protobuf.Duration
tidegate.v1.ReserveResponse.id = 1 string
tidegate.v1.ReserveResponse.response = 2 envoy.service.ratelimit.v3.RateLimitResponse
tidegate.v1.SetOverrideRequest.override = 1 tidegate.v1.Override
tidegate.v1.SetOverrideRequest.permanent = 2 bool
tidegate.v1.SettleRequest.amount = 3 uint64
tidegate.v1.SettleRequest.descriptors = 2 repeated envoy.extensions.common.ratelimit.v3.RateLimitDescriptor
tidegate.v1.SettleRequest.domain = 1 string
tidegate.v1.SettleRequest.id = 5 string
";

fn enum_lines(scope: &str, of: &EnumDescriptorProto, into: &mut Vec<String>) {
    for value in &of.value {
        into.push(format!("{scope}.{} {} = {}", of.name(), value.name(), value.number()));
    }
}

fn message_lines(scope: &str, of: &DescriptorProto, into: &mut Vec<String>) {
    let scope = format!("{scope}.{}", of.name());
    for field in &of.field {
        let repeated = if field.label() == Label::Repeated { "repeated " } else { "" };
        let kind = match field.r#type() {
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Uint32 => "uint32",
            Type::Uint64 => "uint64",
            Type::Int32 => "int32",
            Type::Bool => "bool",
            Type::Message | Type::Enum => field.type_name().trim_start_matches('.'),
            other => panic!("{other:?}"),
        };
        into.push(format!("{scope}.{} = {} {repeated}{kind}", field.name(), field.number()));
    }
    of.enum_type.iter().for_each(|nested| enum_lines(&scope, nested, into));
    of.nested_type.iter().for_each(|nested| message_lines(&scope, nested, into));
}

#[test]
fn every_field_has_the_name_and_number_that_envoy_gives_it() {
    let set = FileDescriptorSet::decode(tidegate::wire::FILE_DESCRIPTOR_SET).unwrap();
    let mut lines = Vec::new();
    for file in set.file.iter().filter(|file| file.package() != "google.protobuf") {
        file.enum_type.iter().for_each(|of| enum_lines(file.package(), of, &mut lines));
        file.message_type.iter().for_each(|of| message_lines(file.package(), of, &mut lines));
        for service in &file.service {
            for method in &service.method {
                let stream = |on: bool| if on { "stream " } else { "" };
                lines.push(format!(
                    "{}.{}.{}({}{}) {}{}",
                    file.package(),
                    service.name(),
                    method.name(),
                    stream(method.client_streaming()),
                    method.input_type().trim_start_matches('.'),
                    stream(method.server_streaming()),
                    method.output_type().trim_start_matches('.'),
                ));
            }
        }
    }
    lines.sort();
    assert_eq!(lines, CONTRACT.trim().lines().collect::<Vec<_>>());
}
