//! The legal MIG placements in the database, from the core's one table, for statements that have to know them.

use super::StoreError;
use ctld_core::mig;
use sqlx::PgPool;

/// Makes the table say what the core says. Done at each start of a controller.
pub async fn fill(db: &PgPool) -> Result<(), StoreError> {
    let (mut models, mut profiles, mut starts, mut sizes, mut units) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for model in mig::models() {
        for profile in model.profiles {
            for start in profile.starts {
                models.push(model.name.to_owned());
                profiles.push(profile.name.to_string());
                starts.push(i32::from(*start));
                sizes.push(i32::from(profile.memory_slices));
                units.push(i64::try_from(model.share(profile).units()).unwrap_or(i64::MAX));
            }
        }
    }
    // Sorted by its key, so that controllers starting at once do not meet half-way.
    sqlx::query!(
        "WITH said AS (
             SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::bigint[])
                 AS t (model, profile, start, size, gpu_units)
         ), gone AS (
             DELETE FROM mig_placements p
             WHERE NOT EXISTS (SELECT FROM said s WHERE (s.model, s.profile, s.start) = (p.model, p.profile, p.start))
         )
         INSERT INTO mig_placements (model, profile, start, size, gpu_units)
         SELECT model, profile, start, size, gpu_units FROM said ORDER BY model, profile, start
         ON CONFLICT (model, profile, start) DO UPDATE SET size = EXCLUDED.size, gpu_units = EXCLUDED.gpu_units
             WHERE (mig_placements.size, mig_placements.gpu_units) <> (EXCLUDED.size, EXCLUDED.gpu_units)",
        &models,
        &profiles,
        &starts,
        &sizes,
        &units
    )
    .execute(db)
    .await?;
    Ok(())
}
