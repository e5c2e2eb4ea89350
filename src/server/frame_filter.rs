//! Refuses calls by their HTTP/2 frames, before h2 decodes them.
//!
//! Under overload, a worker that decoded every call only to reject most of them would have no time left
//! to decide any. The filter reads little more than frame headers. It refuses the oldest of the calls
//! that have arrived with RST_STREAM and REFUSED_STREAM, which gRPC reports as UNAVAILABLE, and h2 never
//! sees them. It refuses a call only if its header block leaves the dynamic table of HPACK unchanged and
//! its request follows in one piece, as Envoy sends it, so that h2 can do without its frames.
//!
//! Not here: how many calls pass (`overload`), reading and writing (`preface`, `filtered_reads`).

/// Length of a frame header (RFC 9113, section 4.1).
const FRAME_HEADER_BYTES: usize = 9;
/// Length of the payload of a RST_STREAM or WINDOW_UPDATE frame.
const SHORT_PAYLOAD_BYTES: usize = 4;

// Frame types and flags (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Error code for a stream that has not been processed, so that a retry is safe (RFC 9113, section 7).
const REFUSED_STREAM: u32 = 7;
/// Maximum number of bytes of refusals that wait to be written: about 1,200. As many more may be half
/// written. Calls beyond it pass.
const REPLIES_BYTES_MAX: usize = 16 * 1024;
/// Number of bytes of dropped DATA that are returned to the client's flow-control window together.
/// Less than the smallest window of a connection, 65,535 bytes.
const WINDOW_RETURN_BYTES: u32 = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct FrameFilter {
    /// Header of which the first `head_length` bytes have passed.
    head: [u8; FRAME_HEADER_BYTES],
    head_length: usize,
    /// Number of bytes of the current frame that have not passed yet.
    payload_left: usize,
    /// Stream of the newest call, and of the newest call that has passed.
    newest: u32,
    newest_passed: u32,
    /// Bytes of dropped DATA that have not been returned to the client's flow-control window.
    dropped_bytes: u32,
    /// Frames for the client, to be written between two frames of h2.
    pub(crate) replies: Vec<u8>,
    /// Number of calls that the client has reset, until the caller takes it.
    pub(crate) resets: usize,
    /// Number of calls that were refused, until the caller takes it.
    pub(crate) refused: usize,
}

#[derive(Clone, Copy)]
struct FrameHeader {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Frame, or a call that may be refused with all its frames.
struct Piece<'a> {
    first: FrameHeader,
    bytes: &'a [u8],
    /// Number of bytes of DATA of a call that may be refused.
    data_of_call: Option<usize>,
}

impl FrameFilter {
    /// Follows bytes that pass unchanged.
    pub(crate) fn follow(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = self.payload_left.min(bytes.len());
            self.payload_left -= skipped;
            bytes = &bytes[skipped..];
            let head = match bytes.split_first_chunk() {
                Some((head, rest)) if self.head_length == 0 => {
                    bytes = rest;
                    *head
                }
                _ => {
                    let length = bytes.len().min(FRAME_HEADER_BYTES - self.head_length);
                    self.head[self.head_length..][..length].copy_from_slice(&bytes[..length]);
                    self.head_length += length;
                    if self.head_length < FRAME_HEADER_BYTES {
                        return;
                    }
                    (self.head_length, bytes) = (0, &bytes[length..]);
                    self.head
                }
            };
            let frame = FrameHeader::parse(&head);
            self.payload_left = frame.length;
            self.note(frame);
            if frame.kind == HEADERS {
                self.newest_passed = self.newest_passed.max(frame.stream);
            }
        }
    }

    /// Returns whether bytes may pass unfiltered again. If the newest call was refused, they may not:
    /// h2 would close the connection if it saw a reset of a call that, to it, has not begun.
    pub(crate) fn may_stop(&self) -> bool {
        self.newest == self.newest_passed
    }

    /// Filters bytes that follow those that passed. The newest `quota` calls pass, and those that the
    /// filter cannot refuse. Appends what passes to `passed`. Returns the number of bytes that it is
    /// done with. The others, at most 12, begin a frame.
    pub(crate) fn filter(&mut self, bytes: &[u8], quota: usize, passed: &mut Vec<u8>) -> usize {
        let mut done = self.length_of_begun(bytes);
        self.pass(&bytes[..done], passed);
        let (rest, newest) = (&bytes[done..], self.newest);
        let calls = pieces(rest, newest).filter(|piece| piece.first.kind == HEADERS).count();
        let mut too_many = calls.saturating_sub(quota);
        for Piece { first, bytes, data_of_call } in pieces(rest, newest) {
            done += bytes.len();
            match data_of_call {
                Some(data_bytes) if too_many > 0 && self.replies.len() < REPLIES_BYTES_MAX => {
                    too_many -= 1;
                    self.refuse(first, data_bytes);
                }
                _ if self.belongs_to_refused(first) => self.note(first),
                _ => self.pass(bytes, passed),
            }
        }
        // A longer frame is not the reset of a refused call.
        if bytes[done..]
            .first_chunk()
            .is_some_and(|head| FrameHeader::parse(head).length > SHORT_PAYLOAD_BYTES)
        {
            self.pass(&bytes[done..], passed);
            done = bytes.len();
        }
        done
    }

    /// Returns the number of bytes of the frame of which a part has passed.
    fn length_of_begun(&self, bytes: &[u8]) -> usize {
        if self.head_length == 0 {
            return self.payload_left.min(bytes.len());
        }
        let mut head = self.head;
        let missing = &mut head[self.head_length..];
        let Some(arrived) = bytes.get(..missing.len()) else { return bytes.len() };
        missing.copy_from_slice(arrived);
        (arrived.len() + FrameHeader::parse(&head).length).min(bytes.len())
    }

    fn pass(&mut self, bytes: &[u8], passed: &mut Vec<u8>) {
        self.follow(bytes);
        passed.extend_from_slice(bytes);
    }

    fn note(&mut self, frame: FrameHeader) {
        self.resets += usize::from(frame.kind == RST_STREAM);
        if frame.kind == HEADERS && frame.stream > self.newest {
            self.newest = frame.stream;
        }
    }

    fn refuse(&mut self, call: FrameHeader, data_bytes: usize) {
        self.note(call);
        self.refused += 1;
        self.reply(RST_STREAM, call.stream, REFUSED_STREAM);
        self.dropped_bytes += data_bytes as u32;
        if self.dropped_bytes >= WINDOW_RETURN_BYTES {
            self.reply(WINDOW_UPDATE, 0, self.dropped_bytes);
            self.dropped_bytes = 0;
        }
    }

    /// Returns whether h2 would say of a frame's call that it has not begun.
    fn belongs_to_refused(&self, frame: FrameHeader) -> bool {
        [RST_STREAM, WINDOW_UPDATE].contains(&frame.kind)
            && (self.newest_passed + 1..=self.newest).contains(&frame.stream)
    }

    fn reply(&mut self, kind: u8, stream: u32, value: u32) {
        self.replies.extend_from_slice(&[0, 0, SHORT_PAYLOAD_BYTES as u8, kind, 0]);
        self.replies.extend_from_slice(&stream.to_be_bytes());
        self.replies.extend_from_slice(&value.to_be_bytes());
    }
}

impl FrameHeader {
    fn parse(head: &[u8; FRAME_HEADER_BYTES]) -> Self {
        let [high, middle, low, kind, flags, stream @ ..] = *head;
        FrameHeader {
            length: u32::from_be_bytes([0, high, middle, low]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        }
    }
}

/// Returns the frame at the beginning of `bytes`, and its length with its header, if it is complete.
fn first_frame(bytes: &[u8]) -> Option<(FrameHeader, usize)> {
    let frame = FrameHeader::parse(bytes.first_chunk()?);
    let length = FRAME_HEADER_BYTES + frame.length;
    (length <= bytes.len()).then_some((frame, length))
}

/// Returns the complete frames at the beginning of `bytes`. `newest` is the newest call before them.
fn pieces(mut bytes: &[u8], mut newest: u32) -> impl Iterator<Item = Piece<'_>> {
    std::iter::from_fn(move || {
        let (first, mut length) = first_frame(bytes)?;
        let mut data_of_call = None;
        if first.kind == HEADERS && first.stream > newest {
            newest = first.stream;
            if let Some((call_length, data_bytes)) = refusable_call(bytes) {
                (length, data_of_call) = (call_length, Some(data_bytes));
            }
        }
        let (piece, rest) = bytes.split_at(length);
        bytes = rest;
        Some(Piece { first, bytes: piece, data_of_call })
    })
}

/// Returns the length of a call at the beginning of `bytes`, and that of its DATA, if h2 can do without
/// it: if HPACK does not need its header block, and no other frame comes before its end.
fn refusable_call(bytes: &[u8]) -> Option<(usize, usize)> {
    let (headers, mut length) = first_frame(bytes)?;
    let is_plain = headers.flags & (END_HEADERS | PADDED | PRIORITY) == END_HEADERS;
    // h2 closes a connection on which the client opens a stream with an even number.
    let is_of_client = headers.stream % 2 == 1;
    if !is_plain || !is_of_client || !keeps_hpack_table(&bytes[FRAME_HEADER_BYTES..length]) {
        return None;
    }
    let (mut last, mut data_bytes) = (headers, 0);
    while last.flags & END_STREAM == 0 {
        let (data, data_length) = first_frame(&bytes[length..])?;
        if data.kind != DATA || data.stream != headers.stream {
            return None;
        }
        (last, length, data_bytes) = (data, length + data_length, data_bytes + data.length);
    }
    Some((length, data_bytes))
}

/// Returns whether h2 can do without a header block: whether all fields are indexed, or literals that
/// are not added to the dynamic table (RFC 7541, section 6).
fn keeps_hpack_table(mut block: &[u8]) -> bool {
    while let Some(first) = block.first() {
        let field = match first {
            0x80.. => skip_integer(block, 7).map(|(_, rest)| rest),
            0..0x20 => skip_integer(block, 4).and_then(|(index, rest)| {
                let value = if index == 0 { skip_text(rest)? } else { rest };
                skip_text(value)
            }),
            _ => None,
        };
        let Some(rest) = field else { return false };
        block = rest;
    }
    true
}

/// Reads an integer of HPACK whose first byte has this many bits of it. Returns it, and what follows.
fn skip_integer(bytes: &[u8], prefix_bits: u32) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1 << prefix_bits) - 1;
    let mut value = usize::from(*first) & most;
    if value < most {
        return Some((value, rest));
    }
    // Three bytes: no block is longer.
    for shift in [0, 7, 14] {
        let (next, after) = rest.split_first()?;
        rest = after;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

/// Returns what follows a text of HPACK.
fn skip_text(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = skip_integer(bytes, 7)?;
    rest.get(length..)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PING: u8 = 6;
    const CONTINUATION: u8 = 9;
    /// POST, http, and four indexed fields.
    const INDEXED: &[u8] = &[0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags];
        [&head[..], &stream.to_be_bytes(), payload].concat()
    }

    fn call(stream: u32) -> Vec<u8> {
        let message = frame(DATA, END_STREAM, stream, &[7; 30]);
        [frame(HEADERS, END_HEADERS, stream, INDEXED), message].concat()
    }

    fn reset(stream: u32) -> Vec<u8> {
        frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
    }

    /// Splits bytes into frames, each with its header.
    fn frames(mut bytes: &[u8]) -> impl Iterator<Item = (FrameHeader, &[u8])> {
        std::iter::from_fn(move || {
            let (frame, length) = first_frame(bytes)?;
            let (whole, rest) = bytes.split_at(length);
            bytes = rest;
            Some((frame, whole))
        })
    }

    fn refusals(filter: &FrameFilter) -> Vec<u32> {
        let resets = frames(&filter.replies).filter(|(frame, _)| frame.kind == RST_STREAM);
        resets.map(|(frame, _)| frame.stream).collect()
    }

    /// Runs a new filter. Returns it, and what passed.
    fn run(bytes: &[u8], quota: usize) -> (FrameFilter, Vec<u8>) {
        let mut filter = FrameFilter::default();
        let mut passed = Vec::new();
        assert_eq!(filter.filter(bytes, quota, &mut passed), bytes.len());
        (filter, passed)
    }

    #[test]
    fn the_newest_calls_pass_and_the_others_are_refused() {
        let (filter, passed) = run(&[call(1), call(3), call(5), reset(5), call(7)].concat(), 2);
        assert_eq!(passed, [call(5), reset(5), call(7)].concat());
        assert_eq!(refusals(&filter), [1, 3]);
        assert_eq!(filter.replies[..13], [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!((filter.resets, filter.refused), (1, 2));
    }

    #[test]
    fn frames_of_a_call_that_to_h2_has_not_begun_are_dropped() {
        let (mut filter, mut passed) = run(&[call(1), call(3), reset(3)].concat(), 0);
        assert!(passed.is_empty() && !filter.may_stop());
        let later = [reset(1), frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])].concat();
        filter.filter(&later, 0, &mut passed);
        assert!(passed.is_empty());
        // h2 ignores the reset of an older call than its newest.
        filter.filter(&[call(5), reset(1)].concat(), 1, &mut passed);
        assert_eq!(passed, [call(5), reset(1)].concat());
        assert!(filter.may_stop());
    }

    #[test]
    fn calls_that_h2_must_see_pass_beyond_the_quota() {
        let open = |flags, block: &[u8]| {
            [frame(HEADERS, flags, 1, block), frame(DATA, END_STREAM, 1, b"x")].concat()
        };
        let with_field = |field: &[u8]| open(END_HEADERS, &[INDEXED, field].concat());
        for kept in [
            with_field(b"\x40\x01a\x01b"),
            with_field(b"\x7e\x01b"),
            with_field(b"\x3f\xe1\x1f"),
            with_field(b"\x00\x01a\x02b"),
            with_field(b"\x00\x7f\xff\xff\xff\x01a"),
            open(0, INDEXED),
            open(END_HEADERS | PADDED, INDEXED),
            open(END_HEADERS | PRIORITY, INDEXED),
            frame(HEADERS, END_HEADERS | END_STREAM, 2, INDEXED),
            frame(HEADERS, END_HEADERS, 1, INDEXED),
            [frame(HEADERS, END_HEADERS, 1, INDEXED), frame(DATA, 0, 1, b"x")].concat(),
            [frame(HEADERS, END_HEADERS, 1, INDEXED), reset(1)].concat(),
        ] {
            let (filter, passed) = run(&kept, 0);
            assert_eq!((passed, filter.replies.len()), (kept, 0));
        }
        for refused in [
            with_field(b""),
            with_field(b"\xff\x05"),
            with_field(b"\x04\x02/a"),
            with_field(b"\x1f\x1f\x01b"),
            with_field(b"\x00\x01a\x01b"),
            with_field(b"\x10\x81a\x81b"),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, INDEXED),
        ] {
            let (filter, passed) = run(&refused, 0);
            assert_eq!((passed.len(), refusals(&filter)), (0, vec![1]), "{refused:?}");
        }
    }

    #[test]
    fn refusals_that_wait_are_bounded_and_calls_beyond_them_pass() {
        let bytes: Vec<u8> = (0..10_000).flat_map(|number| call(2 * number + 1)).collect();
        let (filter, passed) = run(&bytes, 0);
        assert!(filter.replies.len() < REPLIES_BYTES_MAX + 100);
        assert!(filter.refused > 1_000, "{}", filter.refused);
        assert_eq!(passed.len(), (10_000 - filter.refused) * call(1).len());
    }

    #[test]
    fn only_what_may_be_the_reset_of_a_refused_call_is_held_back() {
        let mut filter = FrameFilter::default();
        let mut passed = Vec::new();
        let bytes = [call(1), reset(1)].concat();
        assert_eq!(filter.filter(&bytes[..bytes.len() - 1], 0, &mut passed), call(1).len());
        assert!(passed.is_empty());
        let long = frame(DATA, 0, 1, &vec![0; 100_000]);
        let (first, second) = long.split_at(10);
        assert_eq!(filter.filter(first, 0, &mut passed), 10);
        filter.filter(&[second, &call(3)].concat(), 0, &mut passed);
        assert_eq!(passed, long);
        assert_eq!(refusals(&filter), [1, 3]);
    }

    /// Turns numbers into the frames of a client that keeps to the protocol, with the bytes of each.
    fn client_frames(choices: &[(u8, u8, u16)]) -> Vec<Vec<u8>> {
        let (mut next, mut open, mut seen, mut out) = (1, Vec::new(), Vec::new(), Vec::new());
        for (kind, which, length) in choices {
            let payload = vec![*which; usize::from(*length) % 5_000];
            let pick = |streams: &Vec<u32>| {
                streams.get(usize::from(*which) % streams.len().max(1)).copied()
            };
            match kind % 8 {
                0..3 => {
                    let ends = u8::from(which % 4 == 0) * END_STREAM;
                    match which % 8 {
                        1 => out.push(frame(
                            HEADERS,
                            END_HEADERS | ends,
                            next,
                            b"\x83\x40\x01a\x01b",
                        )),
                        2 => {
                            let rest = frame(CONTINUATION, END_HEADERS, next, INDEXED);
                            out.push([frame(HEADERS, ends, next, INDEXED), rest].concat());
                        }
                        _ => out.push(frame(HEADERS, END_HEADERS | ends, next, INDEXED)),
                    }
                    seen.push(next);
                    if ends == 0 {
                        open.push(next);
                    }
                    next += 2;
                }
                3 => out.extend(pick(&open).map(|stream| frame(DATA, 0, stream, &payload))),
                4 => out.extend(pick(&open).map(|stream| {
                    open.retain(|other| *other != stream);
                    frame(DATA, END_STREAM, stream, &payload)
                })),
                5 => out.extend(pick(&seen).map(|stream| {
                    open.retain(|other| *other != stream);
                    seen.retain(|other| *other != stream);
                    reset(stream)
                })),
                6 => out.extend(
                    pick(&seen).map(|stream| frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 9])),
                ),
                _ => out.push(frame(PING, 0, 0, &[*which; 8])),
            }
        }
        out
    }

    proptest! {
        /// Whatever arrives together, and whenever the filter starts and stops, exactly the frames of
        /// the calls that were not dropped pass, and only calls that may be refused are dropped.
        #[test]
        fn exactly_the_frames_of_the_other_calls_pass(
            choices in prop::collection::vec(any::<(u8, u8, u16)>(), 1..80),
            reads in prop::collection::vec((1..3_000_usize, any::<bool>(), 0..4_usize), 1..60),
        ) {
            let sent = client_frames(&choices);
            let mut bytes = &sent.concat()[..];
            let mut filter = FrameFilter::default();
            let (mut passed, mut replies, mut incomplete) = (Vec::new(), Vec::new(), Vec::new());
            for (length, filters, quota) in reads.iter().cycle() {
                if bytes.is_empty() {
                    break;
                }
                let (read, rest) = bytes.split_at(bytes.len().min(*length));
                bytes = rest;
                if *filters || !filter.may_stop() || !incomplete.is_empty() {
                    incomplete.extend_from_slice(read);
                    let done = filter.filter(&incomplete, *quota, &mut passed);
                    incomplete.drain(..done);
                    prop_assert!(incomplete.len() < 13);
                } else {
                    filter.follow(read);
                    passed.extend_from_slice(read);
                }
                replies.append(&mut filter.replies);
            }
            prop_assert!(incomplete.is_empty());
            let headers = |bytes: &[u8]| -> BTreeSet<u32> {
                frames(bytes).filter(|(frame, _)| frame.kind == HEADERS).map(|(frame, _)| frame.stream).collect()
            };
            let all = sent.concat();
            let dropped = &headers(&all) - &headers(&passed);
            // h2 ignores these of an older call than its newest.
            let is_ignored = |frame: &FrameHeader| {
                dropped.contains(&frame.stream) && [RST_STREAM, WINDOW_UPDATE].contains(&frame.kind)
            };
            let kept = |bytes: &[u8], without: &BTreeSet<u32>| -> Vec<u8> {
                let kept = frames(bytes).filter(|(frame, _)| !is_ignored(frame) && !without.contains(&frame.stream));
                kept.flat_map(|(_, bytes)| bytes.to_vec()).collect()
            };
            prop_assert_eq!(kept(&passed, &BTreeSet::new()), kept(&all, &dropped));
            let mut newest = 0;
            for (frame, _) in frames(&passed) {
                newest = newest.max(if frame.kind == HEADERS { frame.stream } else { 0 });
                prop_assert!(frame.stream <= newest, "stream {} has not begun", frame.stream);
            }
            let (mut refused, mut returned) = (BTreeSet::new(), u64::from(filter.dropped_bytes));
            for (frame, bytes) in frames(&replies) {
                let value = u32::from_be_bytes(*bytes.last_chunk().unwrap());
                match frame.kind {
                    RST_STREAM => prop_assert!(refused.insert(frame.stream)),
                    _ => returned += u64::from(value),
                }
            }
            prop_assert_eq!(&refused, &dropped);
            let mut data = 0;
            for (frame, bytes) in frames(&all).filter(|(frame, _)| dropped.contains(&frame.stream)) {
                match frame.kind {
                    DATA => data += frame.length as u64,
                    HEADERS => prop_assert!(bytes.ends_with(INDEXED) && frame.flags & END_HEADERS != 0),
                    _ => {}
                }
            }
            prop_assert_eq!(returned, data);
        }
    }
}
