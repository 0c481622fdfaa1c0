//! What parameters are called in checkpoints, and states in graphs. Nothing else maps names.

use crate::config::Naming;
use crate::params::Role;

/// Name of a block's parameter, relative to its layer; `None` if the naming has none, or if it is not a block's.
#[must_use]
pub const fn of_block(naming: Naming, role: Role) -> Option<&'static str> {
    match naming {
        Naming::Mixer => mixer(role),
        Naming::Predecessor => predecessor(role),
    }
}

const fn mixer(role: Role) -> Option<&'static str> {
    Some(match role {
        Role::PreNorm => "norm.weight",
        Role::InProj => "mixer.in_proj.weight",
        Role::InProjBias => "mixer.in_proj.bias",
        Role::Conv => "mixer.conv1d.weight",
        Role::ConvBias => "mixer.conv1d.bias",
        Role::ALog => "mixer.A_log",
        Role::DtBias => "mixer.dt_bias",
        Role::DSkip => "mixer.D",
        Role::Norm => "mixer.norm.weight",
        Role::OutProj => "mixer.out_proj.weight",
        Role::OutProjBias => "mixer.out_proj.bias",
        Role::InitStates => "mixer.init_states",
        Role::MimoX => "mixer.mimo_x",
        Role::MimoZ => "mixer.mimo_z",
        Role::MimoO => "mixer.mimo_o",
        Role::BNorm => "mixer.B_norm.weight",
        Role::CNorm => "mixer.C_norm.weight",
        Role::BBias => "mixer.B_bias",
        Role::CBias => "mixer.C_bias",
        Role::Embedding | Role::FinalNorm | Role::Head => return None,
    })
}

const fn predecessor(role: Role) -> Option<&'static str> {
    Some(match role {
        Role::PreNorm => "preNormWeight",
        Role::InProj => "wInProj",
        Role::Conv => "wConv",
        Role::ConvBias => "bConv",
        Role::ALog => "A_log",
        Role::DtBias => "dt_bias",
        Role::DSkip => "D_vec",
        Role::Norm => "normWeight",
        Role::OutProj => "wOutProj",
        Role::MimoX => "mimo_x",
        Role::MimoO => "mimo_o",
        Role::InProjBias
        | Role::OutProjBias
        | Role::InitStates
        | Role::MimoZ
        | Role::BNorm
        | Role::CNorm
        | Role::BBias
        | Role::CBias
        | Role::Embedding
        | Role::FinalNorm
        | Role::Head => return None,
    })
}

/// Name of a parameter of the model around the blocks; `None` for a block's.
#[must_use]
pub const fn of_model(role: Role) -> Option<&'static str> {
    match role {
        Role::Embedding => Some("backbone.embedding.weight"),
        Role::FinalNorm => Some("backbone.norm_f.weight"),
        Role::Head => Some("lm_head.weight"),
        Role::PreNorm
        | Role::InProj
        | Role::InProjBias
        | Role::Conv
        | Role::ConvBias
        | Role::ALog
        | Role::DtBias
        | Role::DSkip
        | Role::Norm
        | Role::OutProj
        | Role::OutProjBias
        | Role::InitStates
        | Role::MimoX
        | Role::MimoZ
        | Role::MimoO
        | Role::BNorm
        | Role::CNorm
        | Role::BBias
        | Role::CBias => None,
    }
}

/// What stands before the names of a layer's parameters.
#[must_use]
pub fn layer_prefix(layer: usize) -> String {
    format!("{OUR_LAYERS}{layer}.")
}

/// What stands before the names of a layer's states, and the layer's scope without its point.
#[must_use]
pub fn state_prefix(layer: usize) -> String {
    format!("layers.{layer}.")
}

/// The name that Hugging Face files use for a parameter of ours.
#[must_use]
pub fn to_hf(name: &str) -> String {
    name.replace("backbone.embedding.", "backbone.embeddings.")
}

/// Our name for a tensor of a Hugging Face file, whose older versions put `model.` before it.
#[must_use]
pub fn from_hf(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    name.replace("backbone.embeddings.", "backbone.embedding.")
}

/// What GGUF files of llama.cpp call parameters, those of a block without what stands before them.
const GGUF: [(Role, &str); 14] = [
    (Role::Embedding, "token_embd.weight"),
    (Role::FinalNorm, "output_norm.weight"),
    (Role::Head, "output.weight"),
    (Role::PreNorm, "attn_norm.weight"),
    (Role::InProj, "ssm_in.weight"),
    (Role::InProjBias, "ssm_in.bias"),
    (Role::Conv, "ssm_conv1d.weight"),
    (Role::ConvBias, "ssm_conv1d.bias"),
    (Role::ALog, "ssm_a"),
    (Role::DtBias, "ssm_dt.bias"),
    (Role::DSkip, "ssm_d"),
    (Role::Norm, "ssm_norm.weight"),
    (Role::OutProj, "ssm_out.weight"),
    (Role::OutProjBias, "ssm_out.bias"),
];

const OUR_LAYERS: &str = "backbone.layers.";
const GGUF_LAYERS: &str = "blk.";

/// The name that GGUF files use for a parameter of ours, or the same name if they have none.
#[must_use]
pub fn to_gguf(name: &str) -> String {
    renamed(name, [OUR_LAYERS, GGUF_LAYERS], |ours, theirs| [ours, theirs])
}

/// Our name for a tensor of a GGUF file, or the same name if it is no parameter of ours.
#[must_use]
pub fn from_gguf(name: &str) -> String {
    renamed(name, [GGUF_LAYERS, OUR_LAYERS], |ours, theirs| [theirs, ours])
}

/// The name with what stands before a layer's number, and what stands after it, replaced. `from_to` puts our name and theirs in order.
fn renamed(name: &str, [from, to]: [&str; 2], from_to: fn(&'static str, &'static str) -> [&'static str; 2]) -> String {
    let find = |rest: &str, ours: fn(Role) -> Option<&'static str>| {
        let pairs = GGUF.iter().filter_map(|&(role, theirs)| Some(from_to(ours(role)?, theirs)));
        pairs.into_iter().find_map(|[from, to]| (from == rest).then_some(to))
    };
    let in_block = name.strip_prefix(from).and_then(|rest| {
        let (layer, rest) = rest.split_once('.')?;
        find(rest, mixer).map(|rest| format!("{to}{layer}.{rest}"))
    });
    in_block.or_else(|| find(name, of_model).map(str::to_owned)).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugging_face_names_come_back() {
        for name in ["backbone.embedding.weight", "backbone.layers.11.mixer.A_log", "lm_head.weight"] {
            assert_eq!(from_hf(&to_hf(name)), name);
            assert_eq!(from_hf(&format!("model.{}", to_hf(name))), name);
        }
        assert_eq!(to_hf("backbone.embedding.weight"), "backbone.embeddings.weight");
    }

    #[test]
    fn names_of_gguf_come_back() {
        for (ours, theirs) in [
            ("backbone.embedding.weight", "token_embd.weight"),
            ("backbone.layers.11.mixer.A_log", "blk.11.ssm_a"),
            ("backbone.layers.0.norm.weight", "blk.0.attn_norm.weight"),
            ("lm_head.weight", "output.weight"),
            ("rope_freqs.weight", "rope_freqs.weight"),
        ] {
            assert_eq!((to_gguf(ours).as_str(), from_gguf(theirs).as_str()), (theirs, ours));
        }
        // Every parameter of a Mamba-2 that such a file can hold has a name.
        let roles = Role::ALL.into_iter().filter_map(|role| of_block(Naming::Mixer, role));
        assert_eq!(roles.filter(|name| to_gguf(&format!("backbone.layers.3.{name}")).starts_with("blk.3.")).count(), 11);
    }

    #[test]
    fn the_predecessor_has_nine_names_and_those_of_ranks() {
        let names: Vec<_> = Role::ALL.into_iter().filter_map(|role| of_block(Naming::Predecessor, role)).collect();
        assert_eq!(names.len(), 11);
        assert_eq!(names.iter().filter(|name| name.starts_with("mimo_")).count(), 2);
        assert_eq!(Role::ALL.into_iter().filter_map(|role| of_block(Naming::Mixer, role)).count(), 19);
    }
}
