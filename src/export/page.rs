//! The page, as one document with its style and script: a browser requests only the page and
//! `/snapshot.json`.

pub(super) const DOCUMENT: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
    "<title>psi-agent</title>\n<style>\n",
    include_str!("page/style.css"),
    "</style>\n</head>\n<body>\n",
    include_str!("page/body.html"),
    "<script>\n",
    include_str!("page/script.js"),
    "</script>\n</body>\n</html>\n",
);
