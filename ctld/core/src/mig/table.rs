//! The one table of what each model offers.
//!
//! Seven-slice models differ in the names, the memory and the multiprocessors only, so their rows are made from those.
//! Memory is in MiB, from the GiB that `nvidia-smi mig -lgip` shows in eighths (9.75 is 9984 MiB); `None` was not seen.

use super::{Model, Profile};
use proto::mig_profile::ProfileName;

/// Every model.
pub(super) static MODELS: [Model; 8] = [
    Model {
        name: "a30",
        memory_gb: 24,
        compute_slices: 4,
        memory_slices: 4,
        mem_mib: A30_MIB,
        profiles: &A30,
    },
    seven("a100-40gb", 40, A100_40_MIB, &A100_40),
    seven("a100-80gb", 80, A100_80_MIB, &A100_80),
    seven("h100-80gb", 80, H100_80_MIB, &H100_80),
    seven("h100-94gb", 94, H100_94_MIB, &H100_94),
    seven("h100-96gb", 96, H100_96_MIB, &H100_96),
    seven("h200", 141, H200_MIB, &H200),
    seven("b200", 180, B200_MIB, &B200),
];

const A30_MIB: u32 = 24_576;
const A100_40_MIB: u32 = 40_960;
const A100_80_MIB: u32 = 81_920;
const H100_80_MIB: u32 = 81_559;
const H100_94_MIB: u32 = 95_830;
const H100_96_MIB: u32 = 97_871;
const H200_MIB: u32 = 143_771;
const B200_MIB: u32 = 183_359;

/// Multiprocessors of the A100.
const A100_SMS: [Option<u16>; 6] = [Some(14), Some(14), Some(28), Some(42), Some(56), Some(98)];
/// Multiprocessors of the H100 with 132 of them; with twice the memory and as 3g it has more than its share.
const H100_SMS: [Option<u16>; 6] = [Some(16), Some(26), Some(32), Some(60), Some(64), Some(132)];

// Names: GB of 1g, of 1g with twice the memory and 2g, of 3g and 4g, of 7g.
// Memory and multiprocessors: of 1g, 1g with twice the memory, 2g, 3g, 4g, 7g.
static A100_40: [Profile; 7] = rows(
    A100_40_MIB,
    [5, 10, 20, 40],
    [Some(4864), Some(9856), Some(9856), Some(19_968), Some(19_968), Some(40_192)],
    A100_SMS,
);
static A100_80: [Profile; 7] = rows(
    A100_80_MIB,
    [10, 20, 40, 80],
    // 1g is shown as 9.6, of which 9.5 is sure.
    [Some(9728), Some(19_968), Some(19_968), Some(40_192), Some(40_192), Some(80_384)],
    A100_SMS,
);
static H100_80: [Profile; 7] = rows(
    H100_80_MIB,
    [10, 20, 40, 80],
    [Some(9984), Some(20_096), Some(20_096), Some(40_448), Some(40_448), Some(81_152)],
    H100_SMS,
);
static H100_94: [Profile; 7] =
    rows(H100_94_MIB, [12, 24, 47, 94], [None, None, None, None, Some(47_488), Some(95_360)], H100_SMS);
/// The H100 of a GH200 and the H20, which differ in their multiprocessors.
static H100_96: [Profile; 7] = rows(H100_96_MIB, [12, 24, 48, 96], [None; 6], [None; 6]);
static H200: [Profile; 7] = rows(
    H200_MIB,
    [18, 35, 71, 141],
    [Some(16_384), None, Some(33_280), None, None, Some(143_360)],
    [Some(16), None, Some(32), None, None, Some(132)],
);
static B200: [Profile; 7] = rows(B200_MIB, [23, 45, 90, 180], [None; 6], [None; 6]);

static A30: [Profile; 5] = [
    row(A30_MIB / 4, ProfileName::plain(1, 6), 1, &[0, 1, 2, 3], 4, Some(5949), Some(14)),
    row(A30_MIB / 4, ProfileName::media(1, 6), 1, &[0, 1, 2, 3], 1, Some(5949), Some(14)),
    row(A30_MIB / 4, ProfileName::plain(2, 12), 2, &[0, 2], 2, Some(11_970), Some(28)),
    row(A30_MIB / 4, ProfileName::media(2, 12), 2, &[0, 2], 1, Some(11_970), Some(28)),
    row(A30_MIB / 4, ProfileName::plain(4, 24), 4, &[0], 1, Some(24_002), Some(56)),
];

const fn seven(name: &'static str, memory_gb: u16, mem_mib: u32, profiles: &'static [Profile]) -> Model {
    Model { name, memory_gb, compute_slices: 7, memory_slices: 8, mem_mib, profiles }
}

/// The rows of a seven-slice model. Slice 7 is only reached by the sizes 2 at 6 and 4 at 4.
#[rustfmt::skip]
const fn rows(gpu_mib: u32, gb: [u16; 4], mem: [Option<u32>; 6], sms: [Option<u16>; 6]) -> [Profile; 7] {
    let slice = gpu_mib / 8;
    [
        row(slice, ProfileName::plain(1, gb[0]), 1, &[0, 1, 2, 3, 4, 5, 6], 7, mem[0], sms[0]),
        row(slice, ProfileName::media(1, gb[0]), 1, &[0, 1, 2, 3, 4, 5, 6], 1, mem[0], sms[0]),
        row(slice, ProfileName::plain(1, gb[1]), 2, &[0, 2, 4, 6],          4, mem[1], sms[1]),
        row(slice, ProfileName::plain(2, gb[1]), 2, &[0, 2, 4],             3, mem[2], sms[2]),
        row(slice, ProfileName::plain(3, gb[2]), 4, &[0, 4],                2, mem[3], sms[3]),
        row(slice, ProfileName::plain(4, gb[2]), 4, &[0],                   1, mem[4], sms[4]),
        row(slice, ProfileName::plain(7, gb[3]), 8, &[0],                   1, mem[5], sms[5]),
    ]
}

const fn row(
    slice_mib: u32,
    name: ProfileName,
    memory_slices: u8,
    starts: &'static [u8],
    count_max: u8,
    seen_mib: Option<u32>,
    sms: Option<u16>,
) -> Profile {
    let (mem_mib, mem_seen) = match seen_mib {
        Some(mib) => (mib, true),
        None => (slice_mib * memory_slices as u32 * 9 / 10, false),
    };
    Profile { name, memory_slices, starts, count_max, mem_mib, mem_seen, sms }
}
