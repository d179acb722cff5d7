//! Tensor cores: fragments of matrices from shared memory, and products of fragments.
//!
//! A fragment is spread over the warp as PTX defines it. In `c += a * b`, `a` has 16 rows and `b` 8
//! columns of 32 bytes each (16 halves or 32 bytes). Lane `l` holds `c[l / 4][2 (l % 4) + {0, 1}]`
//! in its first two values and `c[l / 4 + 8][..]` in the other two. The whole warp calls these
//! functions.

use crate::memory::Plain;
use crate::shared::Shared;

#[cfg(target_os = "cuda")]
mod raw {
    use core::arch::asm;

    #[repr(C)]
    pub struct Four(pub i32, pub i32, pub i32, pub i32);

    macro_rules! integer_products {
        ($($name:ident, $link:literal;)*) => {
            unsafe extern "unadjusted" {
                $(#[link_name = $link]
                pub fn $name(a0: u32, a1: u32, a2: u32, a3: u32, b0: u32, b1: u32, c0: i32, c1: i32, c2: i32, c3: i32) -> Four;)*
            }
        };
    }
    integer_products! {
        mma_i8, "llvm.nvvm.mma.m16n8k32.row.col.s8";
        mma_u8, "llvm.nvvm.mma.m16n8k32.row.col.u8";
    }

    #[inline(always)]
    pub unsafe fn mma_f16(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        let [c0, c1, c2, c3] = *c;
        let (d0, d1, d2, d3): (f32, f32, f32, f32);
        // SAFETY: the caller has the whole warp here.
        unsafe {
            asm!(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{}, {}, {}, {}}}, {{{}, {}, {}, {}}}, {{{}, {}}}, {{{}, {}, {}, {}}};",
                out(reg32) d0, out(reg32) d1, out(reg32) d2, out(reg32) d3,
                in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                in(reg32) b[0], in(reg32) b[1],
                in(reg32) c0, in(reg32) c1, in(reg32) c2, in(reg32) c3,
                options(nomem, nostack)
            );
        }
        *c = [d0, d1, d2, d3];
    }

    #[inline(always)]
    pub unsafe fn load_matrices(address: u32) -> [u32; 4] {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: the caller has the whole warp here, and rows at its addresses.
        unsafe {
            asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b,
                out(reg32) c, out(reg32) d, in(reg32) address, options(readonly, nostack));
        }
        [a, b, c, d]
    }
}

/// Loads four matrices of 8 rows of 16 bytes.
///
/// Lane `l` passes the address of row `l % 8` of matrix `l / 8`, and gets word `l % 4` of row `l /
/// 4` of each matrix.
#[inline(always)]
#[track_caller]
pub fn load_matrices<T: Plain>(row: Shared<T>) -> [u32; 4] {
    #[cfg(target_os = "cuda")]
    // SAFETY: the promise of the running kernel covers the rows, and the whole warp is here.
    unsafe {
        raw::load_matrices(row.address())
    }
    #[cfg(not(target_os = "cuda"))]
    {
        // Each lane reads its row and shows it.
        let quad = row.get_quad(0).0;
        let shown = crate::host::lane(|lane, at| lane.exchange(u32::MAX, "load_matrices", &quad, at));
        let lane = crate::warp::lane_id() as usize;
        std::array::from_fn(|matrix| shown[8 * matrix + lane / 4][lane % 4])
    }
}

/// Element types of fragments.
pub trait Element: Plain {
    /// The type of the sums.
    type Sum: Plain + Default;

    /// `c += a * b` (layout: see the module). f16: products are exact; the hardware rounds sums in
    /// f32 within 8 units of 2^-23 of the largest addend. Bytes: exact while the sums fit an `i32`.
    fn multiply_add(c: &mut [Self::Sum; 4], a: [u32; 4], b: [u32; 2]);
}

impl Element for half::f16 {
    type Sum = f32;

    #[inline(always)]
    #[track_caller]
    fn multiply_add(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        #[cfg(target_os = "cuda")]
        // SAFETY: the whole warp is here, by the promise of the running kernel.
        unsafe {
            raw::mma_f16(c, a, b);
        }
        #[cfg(not(target_os = "cuda"))]
        {
            let half = |bits: u32| half::f16::from_bits(bits as u16).to_f64();
            let halves = |word: u32| [half(word), half(word >> 16)];
            // Rounded once. The hardware truncates addends at an undocumented bit below the
            // largest.
            let dot = |c: f32, a: &[[f64; 2]; 8], b: &[[f64; 2]; 8]| {
                let pairs = a.as_flattened().iter().zip(b.as_flattened());
                pairs.fold(f64::from(c), |sum, (x, y)| sum + x * y) as f32
            };
            product(c, (a, b), "mma f16", halves, dot);
        }
    }
}

macro_rules! bytes {
    ($($type:ty, $raw:ident, $what:literal;)*) => {$(
        impl Element for $type {
            type Sum = i32;

            #[inline(always)]
            #[track_caller]
            fn multiply_add(c: &mut [i32; 4], a: [u32; 4], b: [u32; 2]) {
                #[cfg(target_os = "cuda")]
                {
                    // SAFETY: the whole warp is here, by the promise of the running kernel.
                    let d = unsafe { raw::$raw(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
                    *c = [d.0, d.1, d.2, d.3];
                }
                #[cfg(not(target_os = "cuda"))]
                {
                    let byte = |word: u32| i32::from(word as $type);
                    let bytes = |word: u32| [byte(word), byte(word >> 8), byte(word >> 16), byte(word >> 24)];
                    let dot = |c: i32, a: &[[i32; 4]; 8], b: &[[i32; 4]; 8]| {
                        let pairs = a.as_flattened().iter().zip(b.as_flattened());
                        pairs.fold(c, |sum, (x, y)| sum.wrapping_add(x * y))
                    };
                    product(c, (a, b), $what, bytes, dot);
                }
            }
        }
    )*};
}

bytes! {
    u8, mma_u8, "mma u8";
    i8, mma_i8, "mma i8";
}

/// Computes the lane's fragment of a product on the host: every lane shows its words of `a` and
/// `b`, then gathers the two rows and two columns that it needs, 8 words each, and sums `dot` over
/// them.
#[cfg(not(target_os = "cuda"))]
#[track_caller]
fn product<S: Copy, V: Copy + Default, const N: usize>(
    c: &mut [S; 4],
    (a, b): ([u32; 4], [u32; 2]),
    what: &'static str,
    split: impl Fn(u32) -> [V; N],
    dot: impl Fn(S, &[[V; N]; 8], &[[V; N]; 8]) -> S,
) {
    let words = [a[0], a[1], a[2], a[3], b[0], b[1]];
    let shown = crate::host::lane(|lane, at| lane.exchange(u32::MAX, what, &words, at));
    let lane = crate::warp::lane_id() as usize;
    // `a`: lane 4 r + w holds words w and w + 4 of row r in values 0 and 2, of row r + 8 in 1 and
    // 3. `b`: lane 4 n + w holds words w and w + 4 of column n.
    let line = |from: usize, first: usize, second: usize| {
        let mut values = [[V::default(); N]; 8];
        for (w, values) in values.iter_mut().enumerate() {
            *values = split(shown[4 * from + w % 4][if w < 4 { first } else { second }]);
        }
        values
    };
    let rows = [line(lane / 4, 0, 2), line(lane / 4, 1, 3)];
    let column = 2 * (lane % 4);
    let columns = [line(column, 4, 5), line(column + 1, 4, 5)];
    for (index, sum) in c.iter_mut().enumerate() {
        *sum = dot(*sum, &rows[index / 2], &columns[index % 2]);
    }
}
