//! The page, as one document with its style and script: a browser requests only the page and
//! `/snapshot.json`.

pub(super) const DOCUMENT: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/style.css"),
    "</style>\n</head>\n<body>\n",
    include_str!("page/body.html"),
    "<script>\n",
    include_str!("page/script.js"),
    "</script>\n</body>\n</html>\n",
);
