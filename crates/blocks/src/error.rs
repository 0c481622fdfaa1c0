//! Mistakes in a configuration. The fault of the caller, or of the file that the configuration was read from.

use monopass_ir::GraphBuilder;
use std::fmt;

/// One inconsistency of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A setting that does not exist.
    #[error("config: no setting is called {key:?}")]
    UnknownKey {
        /// As written.
        key: String,
        /// The settings there are, separated by commas.
        known: String,
    },
    /// A setting without `=`.
    #[error("config: {text:?} is not a setting")]
    NotASetting {
        /// As written.
        text: String,
    },
    /// A setting whose value has another type.
    #[error("config: {key} is {value}, which is not {expects}")]
    BadValue {
        /// The setting.
        key: String,
        /// As written.
        value: String,
        /// What it takes.
        expects: &'static str,
    },
    /// A setting that has to be there.
    #[error("config: {key} is missing")]
    Missing {
        /// The setting.
        key: &'static str,
    },
    /// A size of zero.
    #[error("config: {key} is 0")]
    Zero {
        /// The setting.
        key: &'static str,
    },
    /// A size that is too large to count its elements.
    #[error("config: {key} = {value} is too large")]
    TooLarge {
        /// The setting or derived size.
        key: &'static str,
        /// Its value.
        value: usize,
    },
    /// Sizes whose product is too large to count.
    #[error("config: {key} = {value} is too large: {what} would have 4294967296 elements or more")]
    ManyElements {
        /// The largest setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// The tensor.
        what: &'static str,
    },
    /// A setting that is given twice, under one name or two.
    #[error("config: {key} is given twice")]
    Twice {
        /// The setting.
        key: String,
    },
    /// A size that has to divide another and does not.
    #[error("config: {what} = {size} is not a multiple of {by} = {divisor}")]
    NotDivisible {
        /// What has to be divisible.
        what: &'static str,
        /// Its value.
        size: usize,
        /// What has to divide it.
        by: &'static str,
        /// Its value.
        divisor: usize,
        /// What to choose instead.
        help: &'static str,
    },
    /// A number outside its range.
    #[error("config: {key} is {value}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// The range.
        help: &'static str,
    },
    /// A derived size that a file states and that the other settings contradict.
    #[error("config: {key} is stated as {stated}, but the other settings give {derived}")]
    Contradiction {
        /// The derived size.
        key: String,
        /// As stated.
        stated: usize,
        /// What follows from the rest.
        derived: usize,
    },
    /// An option that the naming has no parameter name for.
    #[error("config: the predecessor's naming has no name for {what}")]
    Unnamed {
        /// The parameter.
        what: &'static str,
    },
}

impl ConfigError {
    /// How to fix it.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::UnknownKey { known, .. } => format!("the settings are {known}"),
            Self::NotASetting { .. } => "write settings as key=value, separated by commas".to_owned(),
            Self::BadValue { key, expects, .. } => format!("give {key} {expects}"),
            Self::Missing { key: "a_act" } => {
                "add a_act, softplus (mamba_ssm before June 2026) or heavy_tail (since then), as the weights were trained".to_owned()
            }
            Self::Missing { key } => format!("add {key}"),
            Self::Zero { key } => format!("{key} is at least 1"),
            Self::TooLarge { key, .. } => format!("keep {key} below 4294967296"),
            Self::ManyElements { key, .. } => format!("choose a smaller {key}"),
            Self::Twice { .. } => "keep one of them".to_owned(),
            Self::NotDivisible { help, .. } | Self::OutOfRange { help, .. } => (*help).to_owned(),
            Self::Contradiction { key, .. } => format!("correct {key} or leave it out"),
            Self::Unnamed { .. } => "turn the option off, or use naming=mixer".to_owned(),
        }
    }
}

/// Every inconsistency of a configuration, in the order of its settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// Hands the mistakes to a builder, whose `finish` returns them with the place they were made.
    #[track_caller]
    pub fn report(&self, g: &GraphBuilder) {
        for error in &self.0 {
            g.fail(error.to_string(), error.help());
        }
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let sep = if i > 0 { "\n" } else { "" };
            write!(f, "{sep}{error}\n  help: {}", error.help())?;
        }
        Ok(())
    }
}
