//! What a hold is put on, as people name it: a node, a GPU of it, or a part of a GPU.

use super::super::{StoreError, read};
use super::invalid;
use super::standing::range_of;
use ctld_core::atom::{Setting, taken};
use ctld_core::mig;
use ctld_core::span::Span;
use proto::{ApiError, Atom, ErrorCode};
use sqlx::PgConnection;
use sqlx::postgres::types::PgRange;

/// A target that exists.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub node_id: i64,
    pub node: String,
    pub part: Option<Part>,
}

/// A GPU or a part of one.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub gpu_id: i64,
    pub index: i32,
    pub atom: Option<Atom>,
    span: Span,
}

impl Target {
    pub fn gpu_id(&self) -> Option<i64> {
        self.part.as_ref().map(|part| part.gpu_id)
    }

    /// The part of the GPU that is named, as its text.
    pub fn atom(&self) -> Option<String> {
        self.part.as_ref().and_then(|part| part.atom).map(|atom| atom.to_string())
    }

    pub fn span(&self) -> Option<PgRange<i32>> {
        self.part.as_ref().map(|part| range_of(part.span))
    }

    /// As commands name it.
    pub fn name(&self) -> String {
        let index = self.part.as_ref().map(|part| part.index);
        name(&self.node, index, self.atom().as_deref())
    }

    /// Locks the rows that order holds and placements.
    pub async fn lock(&self, tx: &mut PgConnection) -> Result<(), StoreError> {
        sqlx::query!("SELECT id FROM nodes WHERE id = $1 FOR UPDATE", self.node_id)
            .fetch_one(&mut *tx)
            .await?;
        if let Some(gpu_id) = self.gpu_id() {
            sqlx::query!("SELECT id FROM gpus WHERE id = $1 FOR UPDATE", gpu_id).fetch_one(tx).await?;
        }
        Ok(())
    }
}

/// `n1`, `n1/0`, `n1/0/mig:1g.10gb@3`.
pub(super) fn name(node: &str, gpu_index: Option<i32>, atom: Option<&str>) -> String {
    match (gpu_index, atom) {
        (None, _) => node.to_owned(),
        (Some(index), None) => format!("{node}/{index}"),
        (Some(index), Some(atom)) => format!("{node}/{index}/{atom}"),
    }
}

/// Finds what a text names. A first part that names both a node and a GPU names the node.
pub(super) async fn find(db: &mut PgConnection, text: &str) -> Result<Target, StoreError> {
    let (first, rest) = text.split_once('/').map_or((text, None), |(first, rest)| (first, Some(rest)));
    let node =
        sqlx::query!("SELECT id, name FROM nodes WHERE name = $1", first).fetch_optional(&mut *db).await?;
    let (gpu, atom) = match (&node, rest) {
        (Some(_), None) => (None, None),
        (Some(_), Some(rest)) => rest.split_once('/').map_or((Some(rest), None), |(g, a)| (Some(g), Some(a))),
        (None, atom) => (Some(first), atom),
    };
    let Some(gpu) = gpu else {
        let node = node.ok_or_else(|| read::unknown_node(first))?;
        return Ok(Target { node_id: node.id, node: node.name, part: None });
    };
    let row = sqlx::query!(
        "SELECT g.id, g.node_id, g.index, g.model, g.mem_mib, n.name FROM gpus g JOIN nodes n ON n.id = g.node_id
         WHERE CASE WHEN $2::bigint IS NULL THEN g.uuid = $1
             ELSE g.node_id = $2 AND (g.uuid = $1 OR g.index::text = $1 AND g.present) END
         ORDER BY g.uuid = $1 DESC, g.id LIMIT 1",
        gpu,
        node.as_ref().map(|node| node.id)
    )
    .fetch_optional(db)
    .await?;
    let row = row.ok_or_else(|| match &node {
        Some(node) => {
            ApiError::new(ErrorCode::NotFound, format!("node \"{}\" has no GPU \"{gpu}\"", node.name))
                .hint(format!("`bctl node show {}` lists its GPUs", node.name))
        }
        None => ApiError::new(ErrorCode::NotFound, format!("no node and no GPU is called \"{first}\""))
            .hint("`bctl node list` shows the nodes, `binfo --gpus` the GPUs"),
    })?;
    let (atom, span) = match atom {
        None => (None, Span::ALL),
        Some(atom) => {
            let atom: Atom = atom.parse().map_err(|e: proto::atom::AtomError| invalid(e.to_string()))?;
            if atom == Atom::Whole {
                return Err(invalid(format!("{text:?} names the whole GPU twice: leave \"/gpu\" out")));
            }
            (Some(atom), span_of(atom, &row.model, row.mem_mib, text)?)
        }
    };
    let part = Part { gpu_id: row.id, index: row.index, atom, span };
    Ok(Target { node_id: row.node_id, node: row.name, part: Some(part) })
}

/// What an atom covers of a GPU of this model, whatever mode the GPU is in now: a hold may be put ahead of a change.
fn span_of(atom: Atom, model: &str, mem_mib: i64, text: &str) -> Result<Span, StoreError> {
    let setting = match atom {
        Atom::Whole => Setting::Whole,
        Atom::Mig { .. } => {
            let model = mig::model(model, u64::try_from(mem_mib).ok());
            Setting::Mig(model.map_err(|e| invalid(format!("{text:?}: {e}")))?)
        }
        Atom::TimeSlice(slot) => Setting::TimeSlice { slots: slot.of },
        Atom::Mps(slot) => Setting::Mps { slots: slot.of },
    };
    Ok(taken(atom, setting).map_err(|e| invalid(format!("{text:?}: {e}")))?.span)
}
