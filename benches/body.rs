//! What every request pays before the database hears of it: the canonical form of its body with the fingerprint, and
//! the key. `cargo bench`; the sizes are 0.2, 1, 16 and 64 kB and 1 MB.

use std::fmt::Write as _;
use std::hint::black_box;
use std::iter;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use onced::call::{IdempotencyKey, read_body};

/// An order of about this many bytes, with what bodies are made of: nested objects, text with escapes and without,
/// numbers, members that are not in order.
fn body(bytes: usize) -> Vec<u8> {
    let mut text = String::from(r#"{"quantity": 2, "item": "widget", "lines": ["#);
    let mut number = 0;
    while text.len() + 2 < bytes || number == 0 {
        if number > 0 {
            text.push_str(", ");
        }
        write!(
            text,
            r#"{{"sku": "W-{number:05}", "price": {number}.50, "note": "line\n{number} \u00e9", "gift": false}}"#
        )
        .expect("a string takes what is written");
        number += 1;
    }
    text.push_str("]}");
    text.into_bytes()
}

fn fingerprint(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fingerprint");
    for (name, bytes) in [
        ("0.2 kB", 200),
        ("1 kB", 1_000),
        ("16 kB", 16_000),
        ("64 kB", 64_000),
        ("1 MB", 1_000_000),
    ] {
        let body = body(bytes);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::from_parameter(name), &body, |bencher, body| {
            bencher.iter_batched(
                || body.clone(),
                |body| read_body("orders", body).expect("the body is strict JSON"),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn key(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("key");
    for (name, header) in [
        ("bare", "0193807c-5a1e-7a3e-9d6f-2f4c8d1b7a90"),
        ("quoted", r#""0193807c-5a1e-7a3e-9d6f-2f4c8d1b7a90""#),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                IdempotencyKey::parse_header(iter::once(black_box(header)))
                    .expect("the key is well formed")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, fingerprint, key);
criterion_main!(benches);
