//! Encodes a [`Decision`] as the `RateLimitResponse` that Envoy reads.
//!
//! Envoy matches statuses to descriptors by position, so there is one status per descriptor, in
//! order. Not here: making the decision (`decide`), the settings of headers and bodies
//! (`response_config`).

use prost_types::{Duration, Struct};

use super::decode::DecodedRequest;
use super::messages::{RateLimitResponse, rate_limit_response as wire};
use super::response_config::ResponseConfig;
use super::response_headers;
use super::response_headers::RetryWait;
use super::{dynamic_metadata, refusal_body};
use crate::domain::{Code, Decision, Descriptor, Micros, Status, StatusLimit, Unit};
use crate::policy::Policy;

/// Decision on a request, with everything that is needed to encode the response.
pub(crate) struct ResponseInput<'a, 'b> {
    pub(crate) request: &'a DecodedRequest<'b>,
    pub(crate) descriptors: &'a [Descriptor<'a>],
    pub(crate) decision: &'a Decision<'a>,
    pub(crate) rules: &'a Policy,
    pub(crate) response_config: &'a ResponseConfig,
    pub(crate) now: Micros,
    /// Uniformly distributed random number, from which the jitter of `Retry-After` is computed.
    pub(crate) random: u64,
}

impl ResponseInput<'_, '_> {
    /// Builds the protobuf message of the response.
    pub(crate) fn message(&self) -> RateLimitResponse {
        let decision = self.decision;
        let mut response = RateLimitResponse {
            overall_code: code_number(decision.code),
            statuses: decision.statuses.iter().map(encode_status).collect(),
            ..RateLimitResponse::default()
        };
        let refused = decision.code == Code::OverLimit;
        let wait = if refused {
            let limited_by = decision.limited_by.as_ref();
            RetryWait::of_refusal(limited_by, self.response_config, self.now, self.random)
        } else {
            None
        };
        let headers = &mut response.response_headers_to_add;
        response_headers::append(decision, wait, self.response_config, self.now, headers);
        if refused
            && let Some(limited_by) = &decision.limited_by
            && let rule = limited_by.rule.and_then(|id| self.rules.rule(id))
            && let Some((text, content_type)) =
                refusal_body::build(limited_by, decision.source, rule, wait, self.response_config)
        {
            response.raw_body = text.into_bytes();
            headers.push(content_type);
        }
        if refused || self.response_config.request_metadata || decision.slot.is_some() {
            response.dynamic_metadata = Some(self.metadata());
        }
        response
    }

    fn metadata(&self) -> Struct {
        let mut all = Struct::default();
        if self.response_config.request_metadata {
            let (request, descriptors) = (self.request, self.descriptors);
            dynamic_metadata::add_request(
                request,
                descriptors,
                self.decision,
                self.rules,
                &mut all,
            );
        }
        if self.decision.code == Code::OverLimit {
            dynamic_metadata::add_refusal(self.decision, &mut all);
        }
        if let Some(holder) = &self.decision.slot {
            dynamic_metadata::add_holder(holder, &mut all);
        }
        all
    }
}

fn code_number(code: Code) -> i32 {
    match code {
        Code::Ok => wire::Code::Ok.into(),
        Code::OverLimit => wire::Code::OverLimit.into(),
    }
}

fn encode_status(status: &Status<'_>) -> wire::DescriptorStatus {
    wire::DescriptorStatus {
        code: code_number(status.code),
        current_limit: status.shown.as_ref().map(encode_limit),
        limit_remaining: status.remaining,
        duration_until_reset: status.reset.map(|reset| Duration {
            // Rounded up to at least 1, because Envoy drops fractions, and 0 would invite an early
            // retry.
            seconds: i64::try_from(reset.ceil_secs().max(1)).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        quota: None,
    }
}

fn encode_limit(shown: &StatusLimit<'_>) -> wire::RateLimit {
    use wire::rate_limit::Unit as Wire;
    let unit = match shown.rate.unit {
        None => Wire::Unknown,
        Some(Unit::Second) => Wire::Second,
        Some(Unit::Minute) => Wire::Minute,
        Some(Unit::Hour) => Wire::Hour,
        Some(Unit::Day) => Wire::Day,
        Some(Unit::Week) => Wire::Week,
        Some(Unit::Month) => Wire::Month,
        Some(Unit::Year) => Wire::Year,
    };
    wire::RateLimit {
        requests_per_unit: shown.rate.requests_per_unit,
        unit: unit.into(),
        name: shown.name.to_owned(),
        // Left out if 1, because older clients do not know the field.
        unit_multiplier: Some(shown.rate.unit_multiplier).filter(|many| *many > 1),
    }
}

#[cfg(test)]
mod tests;
