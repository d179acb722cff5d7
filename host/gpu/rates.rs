//! Peak rates of devices, to judge kernels by.

/// The peak rates of a device, by its maker's data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second between the device and its memory.
    pub bytes: f64,
    /// Operations per second of dense products of f16 on tensor cores, a multiply-add as two.
    pub f16: f64,
    /// Operations per second of dense products of 8-bit integers on tensor cores, a multiply-add as
    /// two.
    pub int8: f64,
}

/// Prefixes of the names of kernels that use tensor cores.
const ON_TENSOR_CORES: [&str; 6] = [
    "descent_join_",
    "cells_intra_join_",
    "cells_cross_join_",
    "cluster_assign_",
    "cluster_nearest_",
    "exact_filter_",
];

impl Rates {
    /// The rates of a device by its name, such as `NVIDIA H200`; none if unknown.
    pub fn for_device(name: &str) -> Option<Self> {
        let (bytes, f16, int8) = match name {
            "NVIDIA H200" => (4.8e12, 989e12, 1979e12),
            "NVIDIA H100 80GB HBM3" => (3.35e12, 989e12, 1979e12),
            "NVIDIA A100-SXM4-80GB" => (2.039e12, 312e12, 624e12),
            _ => return None,
        };
        Some(Self { bytes, f16, int8 })
    }

    /// Peak operations per second of a kernel of the library; none for kernels without tensor
    /// cores.
    pub fn operations(self, kernel: &str) -> Option<f64> {
        if !ON_TENSOR_CORES.iter().any(|name| kernel.starts_with(name)) {
            return None;
        }
        Some(if kernel.ends_with("_f16") { self.f16 } else { self.int8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_operations_depend_on_the_kernel() {
        let rates = Rates::for_device("NVIDIA H200").unwrap();
        assert_eq!(rates.operations("descent_join_f16"), Some(rates.f16));
        assert_eq!(rates.operations("cells_intra_join_i8"), Some(rates.int8));
        assert_eq!(rates.operations("descent_expand_f16"), None);
        assert_eq!(Rates::for_device("NVIDIA H2000"), None);
    }
}
