//! GPUs and their parts as operators name them: by UUID, or by node and index, `node1/0/mig:1g.10gb@3`.

use crate::client::{Client, escape};
use crate::fail::Fail;
use proto::api::NodeList;
use proto::{Atom, ErrorCode, GpuAtom};

/// The GPU or part that is named; the controller is asked where a node and an index are given.
pub async fn find(client: &mut Client, text: &str) -> Result<GpuAtom, Fail> {
    let Some((node, index, part)) = by_index(text) else {
        return text.parse().map_err(|e: proto::atom::AtomError| {
            Fail::usage(e.to_string())
                .hint("or name it by node and index, such as node1/0; `binfo --gpus` lists them")
        });
    };
    let atom = match part {
        None => Atom::Whole,
        Some(part) => part.parse().map_err(|e: proto::atom::AtomError| Fail::usage(e.to_string()))?,
    };
    let list: NodeList = client.get_as(&format!("/v1/nodes/{}", escape(node))).await?;
    let gpu = list.nodes.iter().flat_map(|node| &node.gpus).find(|gpu| gpu.index == index);
    let gpu = gpu.ok_or_else(|| {
        Fail::new(ErrorCode::NotFound, format!("node \"{node}\" has no GPU {index}"))
            .hint("`binfo --gpus` lists them")
    })?;
    Ok(GpuAtom { gpu: gpu.uuid.clone(), atom })
}

/// `NODE/INDEX` or `NODE/INDEX/PART`.
fn by_index(text: &str) -> Option<(&str, u32, Option<&str>)> {
    let (node, rest) = text.split_once('/')?;
    let (index, part) = match rest.split_once('/') {
        Some((index, part)) => (index, Some(part)),
        None => (rest, None),
    };
    let number = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
    (number && !node.is_empty()).then_some(())?;
    Some((node, index.parse().ok()?, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_by_node_and_index_or_by_uuid() {
        assert_eq!(by_index("node1/0"), Some(("node1", 0, None)));
        assert_eq!(by_index("node1/0/slot:2/8"), Some(("node1", 0, Some("slot:2/8"))));
        for text in ["GPU-1", "GPU-1/mig:1g.10gb@3", "GPU-1/slot:2/8", "/0", "node1/", "node1/x"] {
            assert_eq!(by_index(text), None, "{text}");
        }
    }
}
