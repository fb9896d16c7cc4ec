//! gzip, only on request: compression costs many times as much CPU time as rendering.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Whether a header `Accept-Encoding` names gzip, without the quality 0.
pub fn accepts_gzip(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|entry| {
        let (coding, quality) = entry.split_once(';').unwrap_or((entry, "q=1"));
        let quality = quality.trim().trim_start_matches("q=").trim().parse::<f32>();
        let is_wanted = quality.is_ok_and(|quality| quality > 0.0);
        coding.trim().eq_ignore_ascii_case("gzip") && is_wanted
    })
}

/// Compresses chunks as they are taken. A chunk may become empty until more text follows.
pub fn compressed(
    chunks: impl Iterator<Item = Vec<u8>>,
) -> impl Iterator<Item = std::io::Result<Vec<u8>>> {
    // Level 1: higher levels cost several times as much CPU time for slightly smaller output.
    let mut encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut chunks = chunks.fuse();
    std::iter::from_fn(move || {
        let Some(text) = chunks.next() else { return encoder.take().map(GzEncoder::finish) };
        let encoder = encoder.as_mut()?;
        Some(encoder.write_all(&text).map(|()| std::mem::take(encoder.get_mut())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_on_request_only() {
        for (header, expected) in [
            ("gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("GZIP", true),
            ("*", false),
            ("", false),
            ("identity", false),
            ("gzip;q=0, *", false),
            ("gzip; q=0", false),
            ("xgzip", false),
        ] {
            assert_eq!(accepts_gzip(header), expected, "{header}");
        }
    }
}
