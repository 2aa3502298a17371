//! The framing of every file that must survive a crash: magic, length, CRC32, payload.
//!
//! A frame is whole or it is not there: a writer that dies leaves a tail that no reader takes for a frame. What to do about such a tail
//! is the reader's decision: an attempt's file ignores it, the journal cuts it off.

/// Opens each frame.
pub const MAGIC: [u8; 4] = *b"BCF1";
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 12;

/// The payload as a frame.
pub fn encode(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    out.extend_from_slice(payload);
    out
}

/// The payload of the frame at the start of `bytes`, if a whole and sound one is there.
pub fn decode(bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.get(..HEADER_BYTES)?;
    if header[..4] != MAGIC {
        return None;
    }
    let length = u32::from_le_bytes(header[4..8].try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(header[8..12].try_into().ok()?);
    let payload = bytes.get(HEADER_BYTES..HEADER_BYTES.checked_add(length)?)?;
    (crc32fast::hash(payload) == crc).then_some(payload)
}

/// The payloads of all sound frames from the start, and how many bytes they take.
pub fn decode_all(bytes: &[u8]) -> (Vec<&[u8]>, usize) {
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some(payload) = decode(&bytes[at..]) {
        frames.push(payload);
        at += HEADER_BYTES + payload.len();
    }
    (frames, at)
}

/// Whether a sound frame begins anywhere in `bytes`.
pub fn any_within(bytes: &[u8]) -> bool {
    bytes
        .windows(MAGIC.len())
        .enumerate()
        .any(|(at, window)| window == MAGIC && decode(&bytes[at..]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_read_back_and_a_torn_tail_is_no_frame(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6),
            cut in 1usize..40,
        ) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|p| encode(p)).collect();
            let (frames, length) = decode_all(&bytes);
            prop_assert_eq!(frames, payloads.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert_eq!(length, bytes.len());
            if let Some(last) = payloads.last() {
                let torn = &bytes[..bytes.len() - cut.min(HEADER_BYTES + last.len())];
                prop_assert_eq!(decode_all(torn).0.len(), payloads.len() - 1);
            }
        }

        #[test]
        fn a_flipped_bit_is_seen(payload in prop::collection::vec(any::<u8>(), 1..60), at in any::<usize>(), bit in 0u8..8) {
            let mut bytes = encode(&payload);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(decode(&bytes).is_none() || decode(&bytes) != Some(payload.as_slice()));
        }
    }
}
