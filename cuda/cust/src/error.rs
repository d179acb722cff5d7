//! Errors of the driver.

use std::fmt;

/// The result of a driver call.
pub type CudaResult<T> = Result<T, Failure>;

macro_rules! errors {
    ($($name:ident = $code:literal, $cuda:literal;)*) => {
        /// Errors of the driver that programs distinguish, with the driver's codes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum CudaError {
            $(#[doc = concat!("`", $cuda, "`")] $name = $code,)*
        }

        impl CudaError {
            /// The error with this code; [`CudaError::Unknown`] for an unlisted code.
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    _ => Self::Unknown,
                }
            }

            /// The driver's name of the error, such as `CUDA_ERROR_OUT_OF_MEMORY`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $cuda,)*
                }
            }
        }
    };
}

errors! {
    InvalidValue = 1, "CUDA_ERROR_INVALID_VALUE";
    OutOfMemory = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    NotInitialized = 3, "CUDA_ERROR_NOT_INITIALIZED";
    Deinitialized = 4, "CUDA_ERROR_DEINITIALIZED";
    DeviceUnavailable = 46, "CUDA_ERROR_DEVICE_UNAVAILABLE";
    NoDevice = 100, "CUDA_ERROR_NO_DEVICE";
    InvalidDevice = 101, "CUDA_ERROR_INVALID_DEVICE";
    InvalidImage = 200, "CUDA_ERROR_INVALID_IMAGE";
    InvalidContext = 201, "CUDA_ERROR_INVALID_CONTEXT";
    NoBinaryForGpu = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU";
    EccUncorrectable = 214, "CUDA_ERROR_ECC_UNCORRECTABLE";
    PeerAccessUnsupported = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
    InvalidPtx = 218, "CUDA_ERROR_INVALID_PTX";
    NvlinkUncorrectable = 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE";
    JitCompilerNotFound = 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND";
    UnsupportedPtxVersion = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    InvalidHandle = 400, "CUDA_ERROR_INVALID_HANDLE";
    NotFound = 500, "CUDA_ERROR_NOT_FOUND";
    NotReady = 600, "CUDA_ERROR_NOT_READY";
    IllegalAddress = 700, "CUDA_ERROR_ILLEGAL_ADDRESS";
    LaunchOutOfResources = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    LaunchTimeout = 702, "CUDA_ERROR_LAUNCH_TIMEOUT";
    PeerAccessAlreadyEnabled = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
    AssertError = 710, "CUDA_ERROR_ASSERT";
    HardwareStackError = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR";
    IllegalInstruction = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION";
    MisalignedAddress = 716, "CUDA_ERROR_MISALIGNED_ADDRESS";
    InvalidAddressSpace = 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE";
    InvalidProgramCounter = 718, "CUDA_ERROR_INVALID_PC";
    LaunchFailed = 719, "CUDA_ERROR_LAUNCH_FAILED";
    NotPermitted = 800, "CUDA_ERROR_NOT_PERMITTED";
    NotSupported = 801, "CUDA_ERROR_NOT_SUPPORTED";
    SystemDriverMismatch = 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    Unknown = 999, "CUDA_ERROR_UNKNOWN";
}

impl CudaError {
    /// Whether the error destroys the context: every later call fails, and only a new process
    /// helps.
    pub const fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::EccUncorrectable
                | Self::NvlinkUncorrectable
                | Self::IllegalAddress
                | Self::LaunchTimeout
                | Self::AssertError
                | Self::HardwareStackError
                | Self::IllegalInstruction
                | Self::MisalignedAddress
                | Self::InvalidAddressSpace
                | Self::InvalidProgramCounter
                | Self::LaunchFailed
        )
    }
}

/// A failed call: the operation and the reason. An error of work on the device appears in a later
/// call, which may be innocent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The driver reported an error.
    #[error("{doing}: {} (code {code}){}", CudaError::from_code(*code).name(), Detail(detail))]
    Call {
        /// The operation.
        doing: &'static str,
        /// The driver's code, listed in [`CudaError`] or not.
        code: u32,
        /// Details, such as a compiler's log or a size.
        detail: String,
    },
    /// There is no CUDA driver.
    #[error("no CUDA driver: {0}")]
    NoDriver(String),
    /// The driver lacks a function that this crate uses.
    #[error("CUDA driver too old: {0} missing")]
    MissingFunction(&'static str),
    /// A name holds a zero byte, or a size does not fit.
    #[error("{doing}: found {found}, expected {expected}")]
    Argument {
        /// The operation.
        doing: &'static str,
        /// The value.
        found: String,
        /// The allowed value.
        expected: String,
    },
}

impl Failure {
    /// The error of the failure; [`CudaError::NotInitialized`] if there is no usable driver.
    pub const fn error(&self) -> CudaError {
        match self {
            Self::Call { code, .. } => CudaError::from_code(*code),
            Self::NoDriver(_) | Self::MissingFunction(_) => CudaError::NotInitialized,
            Self::Argument { .. } => CudaError::InvalidValue,
        }
    }

    pub(crate) fn argument(doing: &'static str, found: impl ToString, expected: impl ToString) -> Self {
        Self::Argument { doing, found: found.to_string(), expected: expected.to_string() }
    }

    /// Adds details to the driver's error.
    pub(crate) fn with_detail(self, more: impl FnOnce() -> String) -> Self {
        match self {
            Self::Call { doing, code, .. } => Self::Call { doing, code, detail: more() },
            other => other,
        }
    }
}

/// Converts the code of a driver call to a result.
pub(crate) fn check(code: u32, doing: &'static str) -> CudaResult<()> {
    if code == 0 { Ok(()) } else { Err(Failure::Call { doing, code, detail: String::new() }) }
}

struct Detail<'a>(&'a str);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_go_together() {
        assert_eq!(CudaError::from_code(2), CudaError::OutOfMemory);
        assert_eq!(CudaError::OutOfMemory as u32, 2);
        assert_eq!(CudaError::from_code(9999), CudaError::Unknown);
        assert!(CudaError::IllegalAddress.is_sticky() && !CudaError::OutOfMemory.is_sticky());
    }

    #[test]
    fn a_failure_is_one_line_with_name_and_code() {
        let failure = check(2, "allocating device memory").unwrap_err().with_detail(|| "5 bytes".to_owned());
        assert_eq!(
            failure.to_string(),
            "allocating device memory: CUDA_ERROR_OUT_OF_MEMORY (code 2): 5 bytes"
        );
        let unknown = check(9999, "launching").unwrap_err();
        assert_eq!(unknown.to_string(), "launching: CUDA_ERROR_UNKNOWN (code 9999)");
    }
}
