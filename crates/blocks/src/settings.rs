//! Configurations from text (`d_model=256,d_state=16`) and from JSON, by one table of settings.

use crate::block::BlockConfig;
use crate::config::{LmConfig, Mamba2Config, Mamba2Sizes, Naming, NormKind, Taps};
use crate::error::{ConfigError, ConfigErrors};
use crate::json;
use crate::mamba3::Mamba3Config;
use serde_json::Value;

/// A setting: its names (the first is ours, the others those of files), what it takes, and how it is stored.
/// The function gives `None` if the value does not fit.
pub(crate) type Row<C> = (&'static [&'static str], &'static str, fn(&mut C, &Value) -> Option<()>);

/// Name of a derived size and what it has to be.
pub(crate) type Derived<S> = (&'static str, fn(&S) -> usize);

/// A configuration with a table of settings.
pub(crate) trait Settings: Sized + 'static {
    /// Sizes that follow from it.
    type Sizes: 'static;
    /// Every setting.
    const ROWS: &'static [Row<Self>];
    /// Derived sizes that a file may state.
    const DERIVED: &'static [Derived<Self::Sizes>];
    /// Settings that a file has to have.
    const NEEDED: &'static [&'static str];

    /// The sizes, if all options fit together.
    fn check(&self) -> Result<Self::Sizes, ConfigErrors>;
}

pub(crate) const COUNT: &str = "a whole number that is not negative";
pub(crate) const FLAG: &str = "true or false";
pub(crate) const NUMBER: &str = "a number";

/// Every setting of a Mamba-2 block. `rmsnorm` and `norm_before_gate` are the two halves of `norm` in files; the second one stands
/// after the first, and settings are stored in the order of this table, so that their order in a file does not matter.
const ROWS: &[Row<Mamba2Config>] = &[
    (&["d_model"], COUNT, |c, v| put(&mut c.d_model, json::count(v))),
    (&["d_state", "n_complex"], COUNT, |c, v| put(&mut c.d_state, json::count(v))),
    (&["complex"], FLAG, |c, v| put(&mut c.complex, v.as_bool())),
    (&["mimo_rank"], COUNT, |c, v| put(&mut c.mimo_rank, json::count(v))),
    (&["d_conv"], COUNT, |c, v| put(&mut c.d_conv, json::count(v))),
    (&["expand"], NUMBER, |c, v| put(&mut c.expand, json::number(v))),
    (&["headdim"], COUNT, |c, v| put(&mut c.headdim, json::count(v))),
    (&["d_ssm"], "a whole number or none", |c, v| put(&mut c.d_ssm, optional_count(v))),
    (&["ngroups"], COUNT, |c, v| put(&mut c.ngroups, json::count(v))),
    (&["d_has_hdim", "D_has_hdim"], FLAG, |c, v| put(&mut c.d_has_hdim, v.as_bool())),
    (&["gate"], FLAG, |c, v| put(&mut c.gate, v.as_bool())),
    (&["conv_act"], FLAG, |c, v| put(&mut c.conv_act, v.as_bool())),
    (&["norm"], "none, after_gate or before_gate", |c, v| put(&mut c.norm, norm_kind(v))),
    (&["norm_before_gate"], FLAG, |c, v| {
        put(&mut c.norm, v.as_bool().map(|before| if before { NormKind::BeforeGate } else { NormKind::AfterGate }))
    }),
    (&["rmsnorm"], FLAG, |c, v| {
        if !v.as_bool()? {
            c.norm = NormKind::None;
        }
        Some(())
    }),
    (&["norm_group"], "a whole number or none", |c, v| put(&mut c.norm_group, optional_count(v))),
    (&["bias"], FLAG, |c, v| put(&mut c.bias, v.as_bool())),
    (&["conv_bias"], FLAG, |c, v| put(&mut c.conv_bias, v.as_bool())),
    (&["dt_limit"], "two numbers, lo:hi in text", |c, v| put(&mut c.dt_limit, json::dt_limit(v))),
    (&["eps"], NUMBER, |c, v| put(&mut c.eps, json::number(v))),
    (&["norm_eps"], NUMBER, |c, v| put(&mut c.norm_eps, json::number(v))),
    (&["learnable_init_states", "learnable_init"], FLAG, |c, v| put(&mut c.learnable_init_states, v.as_bool())),
    (&["taps"], "newest_last or newest_first", |c, v| put(&mut c.taps, taps(v))),
    (&["naming"], "mixer or predecessor", |c, v| put(&mut c.naming, naming(v))),
    (&["chunk_size", "chunk"], COUNT, |c, v| put(&mut c.chunk_size, if v.is_null() { Some(0) } else { json::count(v) })),
];

/// Keys of a case file that say how to run it and not what the block is.
const RUN_KEYS: &[&str] = &["chunk_hint", "block", "prefill"];

impl Mamba2Config {
    /// The block that a command line calls `name`, `mamba2`, `mamba2-seed` or `cmamba`, of width `d_model`.
    #[must_use]
    pub fn named(name: &str, d_model: usize) -> Option<Self> {
        match name {
            "mamba2" => Some(Self::new(d_model)),
            "mamba2-seed" => Some(Self::seed(d_model)),
            "cmamba" => Some(Self::cmamba(d_model)),
            _ => None,
        }
    }

    /// Changes the settings that `text` names, such as `d_model=256,d_state=16,dt_limit=0.1:inf,gate=false`.
    ///
    /// # Errors
    /// A name that no setting has, or a value of another type. Whether the sizes fit together is asked of
    /// [`sizes`](Self::sizes).
    pub fn set(&mut self, text: &str) -> Result<(), ConfigErrors> {
        set(self, text)
    }

    /// This configuration with the settings of a JSON object, which may state derived sizes too.
    ///
    /// # Errors
    /// Unknown keys, values of another type, derived sizes that do not follow, and every inconsistency.
    pub fn with_json(self, object: &Value) -> Result<Self, ConfigErrors> {
        with_json(self, object)
    }
}

impl Settings for Mamba2Config {
    type Sizes = Mamba2Sizes;
    const ROWS: &'static [Row<Self>] = ROWS;
    const DERIVED: &'static [Derived<Mamba2Sizes>] =
        &[("d_inner", |s| s.d_inner), ("nheads", |s| s.nheads), ("d_mlp", |s| s.d_mlp), ("bc", |s| s.d_bc), ("conv_dim", |s| s.conv_dim)];
    const NEEDED: &'static [&'static str] = &[];

    fn check(&self) -> Result<Mamba2Sizes, ConfigErrors> {
        self.sizes()
    }
}

/// Changes the settings that `text` names.
pub(crate) fn set<C: Settings>(config: &mut C, text: &str) -> Result<(), ConfigErrors> {
    let mut pairs = Vec::new();
    let mut errors = Vec::new();
    for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
        match setting.split_once('=') {
            Some((key, value)) => pairs.push((key.trim().to_owned(), text_value(value.trim()))),
            None => errors.push(ConfigError::NotASetting { text: setting.to_owned() }),
        }
    }
    store(config, &pairs, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
}

/// The configuration with the settings of a JSON object.
pub(crate) fn with_json<C: Settings>(mut config: C, object: &Value) -> Result<C, ConfigErrors> {
    let Some(object) = object.as_object() else {
        return Err(ConfigError::BadValue { key: "config".into(), value: object.to_string(), expects: "an object" }.into());
    };
    let is_derived = |key: &str| C::DERIVED.iter().any(|(name, _)| *name == key);
    let own = object.iter().filter(|(key, _)| !is_derived(key) && !RUN_KEYS.contains(&key.as_str()));
    let pairs: Vec<(String, Value)> = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    let missing = C::NEEDED.iter().filter(|key| !object.contains_key(**key));
    let mut errors: Vec<ConfigError> = missing.map(|&key| ConfigError::Missing { key }).collect();
    store(&mut config, &pairs, &mut errors);
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    let sizes = config.check()?;
    for (key, derived) in C::DERIVED.iter().map(|(key, of)| (key, of(&sizes))) {
        match object.get(*key).map(json::count) {
            Some(Some(stated)) if stated != derived => errors.push(ConfigError::Contradiction { key: (*key).into(), stated, derived }),
            Some(None) => errors.push(ConfigError::BadValue { key: (*key).into(), value: object[*key].to_string(), expects: COUNT }),
            _ => {}
        }
    }
    if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
}

fn store<C: Settings>(config: &mut C, pairs: &[(String, Value)], errors: &mut Vec<ConfigError>) {
    for (names, expects, put) in C::ROWS {
        for (key, value) in pairs.iter().filter(|(key, _)| names.contains(&key.as_str())) {
            if put(config, value).is_none() {
                errors.push(ConfigError::BadValue { key: key.clone(), value: value.to_string(), expects });
            }
        }
        if let Some((key, _)) = pairs.iter().filter(|(key, _)| names.contains(&key.as_str())).nth(1) {
            errors.push(ConfigError::Twice { key: key.clone() });
        }
    }
    for (key, _) in pairs.iter().filter(|(key, _)| !C::ROWS.iter().any(|(names, ..)| names.contains(&key.as_str()))) {
        let known = C::ROWS.iter().map(|(names, ..)| names[0]).collect::<Vec<_>>().join(", ");
        errors.push(ConfigError::UnknownKey { key: key.clone(), known });
    }
}

impl BlockConfig {
    /// The block of a case file: its kind, `mamba2`, `seed2`, `cmamba` or `mamba3`, and a JSON object of settings.
    ///
    /// # Errors
    /// An unknown kind, and as for [`with_json`](Self::with_json).
    pub fn from_json(kind: &str, object: &Value) -> Result<Self, ConfigErrors> {
        let config: Self = match kind {
            "mamba2" => Mamba2Config::new(0).into(),
            "seed2" => Mamba2Config::seed(0).into(),
            "cmamba" => Mamba2Config::cmamba(0).into(),
            "mamba3" => Mamba3Config::new(0).into(),
            _ => {
                let expects = "mamba2, seed2, cmamba or mamba3";
                return Err(ConfigError::BadValue { key: "block".into(), value: format!("{kind:?}"), expects }.into());
            }
        };
        config.with_json(object)
    }
}

impl LmConfig {
    /// A model from the JSON object of a case: `block_cfg`, `n_layer`, `vocab`, `norm_eps`, `tie`.
    ///
    /// # Errors
    /// Missing keys, values of another type, and every inconsistency.
    pub fn from_json(object: &Value) -> Result<Self, ConfigErrors> {
        let get = |key: &'static str| object.get(key).ok_or(ConfigError::Missing { key });
        let bad = |key: &str, expects| ConfigError::BadValue { key: key.into(), value: object[key].to_string(), expects };
        let block = get("block")?;
        let block = block.as_str().ok_or_else(|| bad("block", "the name of a block"))?;
        let config = Self {
            block: BlockConfig::from_json(block, get("block_cfg")?)?,
            n_layer: json::count(get("n_layer")?).ok_or_else(|| bad("n_layer", COUNT))?,
            vocab_size: json::count(get("vocab")?).ok_or_else(|| bad("vocab", COUNT))?,
            vocab_padding: 0,
            norm_eps: json::number(get("norm_eps")?).ok_or_else(|| bad("norm_eps", NUMBER))?,
            tie_embeddings: get("tie")?.as_bool().ok_or_else(|| bad("tie", FLAG))?,
        };
        config.sizes()?;
        Ok(config)
    }
}

/// Stores a value that was read; `None` if it was not.
pub(crate) fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

fn optional_count(value: &Value) -> Option<Option<usize>> {
    if value.is_null() { Some(None) } else { json::count(value).map(Some) }
}

fn norm_kind(value: &Value) -> Option<NormKind> {
    match value.as_str() {
        Some("after_gate") => Some(NormKind::AfterGate),
        Some("before_gate") => Some(NormKind::BeforeGate),
        // `norm=none` reads as null, as `none` does everywhere in text.
        _ => value.is_null().then_some(NormKind::None),
    }
}

fn taps(value: &Value) -> Option<Taps> {
    match value.as_str()? {
        "newest_last" => Some(Taps::NewestLast),
        "newest_first" => Some(Taps::NewestFirst),
        _ => None,
    }
}

fn naming(value: &Value) -> Option<Naming> {
    match value.as_str()? {
        "mixer" => Some(Naming::Mixer),
        "predecessor" => Some(Naming::Predecessor),
        _ => None,
    }
}

/// A value of the text form as JSON: flags, numbers, `none`, `lo:hi`, and any other word.
fn text_value(text: &str) -> Value {
    if let Some((lo, hi)) = text.split_once(':') {
        return Value::Array(vec![text_value(lo), text_value(hi)]);
    }
    match text {
        "true" => true.into(),
        "false" => false.into(),
        "none" | "null" => Value::Null,
        "inf" => serde_json::json!({"__float__": "Infinity"}),
        _ => text
            .parse::<u64>()
            .map(Value::from)
            .ok()
            .or_else(|| text.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Value::Number))
            .unwrap_or_else(|| text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(text: &str) -> Result<Mamba2Config, String> {
        let mut config = Mamba2Config::new(8);
        config.set(text).map(|()| config).map_err(|errors| errors.to_string())
    }

    #[test]
    fn text_sets_every_kind_of_value() {
        let config =
            set("d_model=256, expand=1.5,d_ssm=none,gate=false,dt_limit=0.1:inf,norm=before_gate,taps=newest_first,eps=1e-6").unwrap();
        assert_eq!((config.d_model, config.expand, config.d_ssm, config.gate), (256, 1.5, None, false));
        assert_eq!(
            (config.dt_limit, config.norm, config.taps, config.eps),
            ([0.1, f32::MAX], NormKind::BeforeGate, Taps::NewestFirst, 1e-6)
        );
        assert_eq!(set("norm=none").unwrap().norm, NormKind::None);
        assert_eq!(set("").unwrap(), Mamba2Config::new(8));
    }

    #[test]
    fn bad_text_says_what_it_takes() {
        assert_eq!(
            set("d_model=many").unwrap_err(),
            "config: d_model is \"many\", which is not a whole number that is not negative\n  help: give d_model a whole number that is not negative"
        );
        assert!(
            set("d_modle=3")
                .unwrap_err()
                .starts_with("config: no setting is called \"d_modle\"\n  help: the settings are d_model, d_state,")
        );
        assert!(set("gate").unwrap_err().contains("\"gate\" is not a setting"));
        assert_eq!(set("gate=true,d_model=4,gate=false").unwrap_err(), "config: gate is given twice\n  help: keep one of them");
        assert!(set("d_has_hdim=true,D_has_hdim=true").unwrap_err().contains("D_has_hdim is given twice"));
        assert!(set("eps=NaN").unwrap_err().contains("not a number"));
    }

    #[test]
    fn a_case_file_is_checked_against_its_derived_sizes() {
        let case = json!({"d_model": 12, "d_state": 5, "headdim": 4, "ngroups": 3, "D_has_hdim": true, "rmsnorm": true, "gate": true,
            "norm_before_gate": true, "dt_limit": [0.0, null], "learnable_init": false, "chunk": null, "conv_dim": 54, "chunk_hint": 8});
        let config = Mamba2Config::new(0).with_json(&case).unwrap();
        assert_eq!((config.norm, config.d_has_hdim, config.dt_limit), (NormKind::BeforeGate, true, [0.0, f32::MAX]));
        let mut wrong = case.clone();
        wrong["conv_dim"] = 55.into();
        let errors = Mamba2Config::new(0).with_json(&wrong).unwrap_err().to_string();
        assert!(errors.contains("conv_dim is stated as 55, but the other settings give 54"), "{errors}");
        let mut off = case;
        off["rmsnorm"] = false.into();
        assert_eq!(Mamba2Config::new(0).with_json(&off).unwrap().norm, NormKind::None);
    }

    #[test]
    fn a_model_needs_all_its_keys() {
        let errors = LmConfig::from_json(&json!({"block": "mamba2"})).unwrap_err().to_string();
        assert!(errors.contains("block_cfg is missing"), "{errors}");
        let errors = LmConfig::from_json(&json!({"block": "mamba4", "block_cfg": {}})).unwrap_err().to_string();
        assert!(errors.contains("mamba2, seed2, cmamba or mamba3"), "{errors}");
        let errors = LmConfig::from_json(&json!({"block": "mamba3", "block_cfg": {"d_model": 8}})).unwrap_err().to_string();
        assert!(errors.contains("a_act is missing"), "{errors}");
    }
}
