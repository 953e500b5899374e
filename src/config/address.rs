//! Which addresses the public Internet reaches, by the special-purpose registries of IANA (RFC 6890 and its updates).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is one that the public Internet reaches: not loopback, private, link-local, shared, reserved,
/// for documentation or benchmarks, or multicast. An IPv6 address that carries an IPv4 address (mapped, compatible,
/// NAT64, 6to4) is judged by that one.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Whether an address is this machine itself, also where IPv6 carries it.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),       // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),      // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),   // shared, behind carriers' NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),     // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),  // link-local, cloud metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),   // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),    // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),    // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),  // 6to4 relays, withdrawn
    (Ipv4Addr::new(192, 168, 0, 0), 16),  // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),   // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),  // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),     // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),     // reserved, broadcast
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !NOT_PUBLIC_V4.iter().any(|(net, length)| (bits ^ net.to_bits()) >> (32 - length) == 0)
}

/// Blocks within 2000::/3 that are not public all the same.
const NOT_PUBLIC_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments: Teredo, ORCHID, benchmarks
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
    (Ipv6Addr::new(0x3ffe, 0, 0, 0, 0, 0, 0, 0), 16), // 6bone, given back
];

/// The blocks whose addresses carry an IPv4 address, with how far right it stands.
const CARRIERS_V6: [(Ipv6Addr, u32, u32); 4] = [
    (Ipv6Addr::UNSPECIFIED, 96, 0), // compatible; holds :: and ::1 too
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, 0), // mapped
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, 0), // NAT64
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, 80), // 6to4
];

fn is_public_v6(address: Ipv6Addr) -> bool {
    let within =
        |net: Ipv6Addr, length: u32| (address.to_bits() ^ net.to_bits()) >> (128 - length) == 0;
    let carrier = CARRIERS_V6.iter().find(|(net, length, _)| within(*net, *length));
    if let Some((_, _, shift)) = carrier {
        let carried = u32::try_from((address.to_bits() >> shift) & u128::from(u32::MAX));
        return carried.is_ok_and(|bits| is_public_v4(Ipv4Addr::from_bits(bits)));
    }
    // Outside 2000::/3 nothing is given out as global unicast: unique local, link-local, multicast, the rest unused.
    within(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3)
        && !NOT_PUBLIC_V6.iter().any(|(net, length)| within(*net, *length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "
        1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255
        128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255
        192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
        2606:4700::1111 2a00:1450::1 2001:200::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8
        2002:808:808::1 ::8.8.8.8";

    const NOT_PUBLIC: &str = "
        0.0.0.0 0.1.2.3 10.0.0.5 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.255
        169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1
        192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1
        239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 ::2 ::127.0.0.1 ::ffff:127.0.0.1
        ::ffff:10.0.0.5 64:ff9b::10.0.0.5 64:ff9b::169.254.169.254 64:ff9b:1::1
        2002:7f00:1::1 2002:a00:5:: 100::1 2001::1 2001:2::1 2001:db8::1 3ffe::1 3fff::1
        5f00::1 fc00::1 fd00::1 fe80::1 fec0::1 ff02::1";

    #[test]
    fn only_what_the_public_internet_reaches_is_public() {
        for address in PUBLIC.split_whitespace() {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in NOT_PUBLIC.split_whitespace() {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}
