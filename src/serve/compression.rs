//! gzip, only on request: compression costs many times as much CPU time as rendering.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

pub fn accepts_gzip(accept_encoding: &str) -> bool {
    let mut any = None;
    for entry in accept_encoding.split(',') {
        let mut parts = entry.split(';').map(str::trim);
        let coding = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).unwrap_or("1");
        let wanted = quality.trim().parse::<f32>().is_ok_and(|quality| quality > 0.0);
        if coding.eq_ignore_ascii_case("gzip") {
            return wanted;
        }
        if coding == "*" {
            any = Some(wanted);
        }
    }
    any.unwrap_or(false)
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
            ("*", true),
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
