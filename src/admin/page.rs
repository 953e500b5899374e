//! The operator's page: files that are part of the program.

use super::headers;
use crate::http::front::Response;

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    path: &'static str,
    media: &'static str,
    text: &'static str,
}

const FILES: [File; 3] = [
    File { path: "/", media: "text/html; charset=utf-8", text: include_str!("page/index.html") },
    File {
        path: "/page.css",
        media: "text/css; charset=utf-8",
        text: include_str!("page/page.css"),
    },
    File {
        path: "/page.js",
        media: "text/javascript; charset=utf-8",
        text: include_str!("page/page.js"),
    },
];

/// Nothing from elsewhere, nothing inline, no form that goes anywhere, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The file at a path.
pub(super) fn find(path: &str) -> Option<File> {
    FILES.into_iter().find(|file| file.path == path)
}

pub(super) fn response(file: File, id: String) -> Response {
    let mut headers = headers(file.media, id);
    headers.extend([
        ("Content-Security-Policy", POLICY.to_owned()),
        ("Referrer-Policy", "no-referrer".to_owned()),
        ("Cross-Origin-Opener-Policy", "same-origin".to_owned()),
        ("Cross-Origin-Resource-Policy", "same-origin".to_owned()),
    ]);
    Response { status: 200, headers, body: file.text.as_bytes().to_vec() }
}
