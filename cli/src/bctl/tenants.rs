//! `bctl tenant` and `bctl quota`.

use super::args::{
    QuotaAct, QuotaListArgs, QuotaSetArgs, QuotaShowArgs, TenantAct, TenantArgs, TenantListArgs,
};
use crate::client::{Client, decode, escape};
use crate::fail::Fail;
use crate::out;
use crate::table::{Column, Table, terminal_width};
use proto::api::{Quota, QuotaList, QuotaRequest, Tenant, TenantList, TenantRequest, TenantUsersRequest};
use proto::quota::Resource;
use std::borrow::Cow;
use std::process::ExitCode;

/// Shows and changes tenants.
pub async fn tenant(act: TenantAct) -> Result<ExitCode, Fail> {
    let mut client = Client::find()?;
    let (body, noheader, json) = match act {
        TenantAct::List(TenantListArgs { noheader, json }) => {
            (client.get("/v1/tenants").await?, noheader, json)
        }
        TenantAct::Show(TenantArgs { tenant, json }) => (client.get(&path(&tenant, "")?).await?, false, json),
        TenantAct::Add(TenantArgs { tenant, json }) => {
            (client.post("/v1/tenants", &TenantRequest { name: tenant }).await?, false, json)
        }
        TenantAct::AddUser(args) => {
            let request = TenantUsersRequest { add: args.users, remove: vec![] };
            (client.post(&path(&args.tenant, "/users")?, &request).await?, false, args.json)
        }
        TenantAct::RemoveUser(args) => {
            let request = TenantUsersRequest { add: vec![], remove: args.users };
            (client.post(&path(&args.tenant, "/users")?, &request).await?, false, args.json)
        }
    };
    if json {
        out::write_json(&body)?;
    } else {
        let list: TenantList = decode(&body)?;
        out::write(tenants_table(&list.tenants).render(!noheader, terminal_width()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows and sets quotas.
pub async fn quota(act: QuotaAct) -> Result<ExitCode, Fail> {
    let (body, noheader, json) = match act {
        QuotaAct::List(QuotaListArgs { noheader, json }) => {
            (Client::find()?.get("/v1/quotas").await?, noheader, json)
        }
        QuotaAct::Show(QuotaShowArgs { tenant, noheader, json }) => {
            (Client::find()?.get(&path(&tenant, "/quota")?).await?, noheader, json)
        }
        QuotaAct::Set(QuotaSetArgs { tenant, limits, json }) => {
            let request = limits_of(&limits)?;
            (Client::find()?.post(&path(&tenant, "/quota")?, &request).await?, false, json)
        }
    };
    if json {
        out::write_json(&body)?;
    } else {
        let list: QuotaList = decode(&body)?;
        out::write(quotas_table(&list.quotas).render(!noheader, terminal_width()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads `RESOURCE=AMOUNT` and `RESOURCE=none`.
fn limits_of(limits: &[String]) -> Result<QuotaRequest, Fail> {
    let mut request = QuotaRequest::default();
    for limit in limits {
        let (name, amount) = limit.split_once('=').ok_or_else(|| {
            Fail::usage(format!("{limit:?} sets no limit: expected RESOURCE=AMOUNT or RESOURCE=none"))
        })?;
        let resource: Resource = name.parse().map_err(|e| Fail::usage(format!("{e}")))?;
        let max = match amount {
            "none" => None,
            amount => Some(resource.parse_amount(amount).map_err(|e| {
                Fail::usage(e.to_string()).hint(format!("write {name}=none to take the limit away"))
            })?),
        };
        if request.max.insert(resource.to_string(), max).is_some() {
            return Err(Fail::usage(format!("{resource} is named twice")));
        }
    }
    Ok(request)
}

fn path(tenant: &str, what: &str) -> Result<String, Fail> {
    match tenant {
        "" | "." | ".." => {
            Err(Fail::usage(format!("{tenant:?} is no tenant's name")).hint("`bctl tenant list` lists them"))
        }
        tenant => Ok(format!("/v1/tenants/{}{what}", escape(tenant))),
    }
}

fn tenants_table(tenants: &[Tenant]) -> Table<'_> {
    let rows = tenants
        .iter()
        .map(|tenant| vec![Cow::Borrowed(tenant.name.as_str()), Cow::Owned(tenant.users.join(","))]);
    Table { columns: vec![Column::whole("TENANT"), Column::soft("USERS")], rows: rows.collect() }
}

fn quotas_table(quotas: &[Quota]) -> Table<'_> {
    let rows = quotas.iter().map(|quota| {
        let show = |amount: u64| match quota.resource.parse::<Resource>() {
            Ok(resource) => resource.show(amount),
            // From a controller that knows more.
            Err(_) => amount.to_string(),
        };
        vec![
            Cow::Borrowed(quota.tenant.as_str()),
            Cow::Borrowed(quota.resource.as_str()),
            Cow::Owned(show(quota.used)),
            Cow::Owned(quota.max.map_or("none".to_owned(), show)),
            Cow::Owned(quota.max.map_or(String::new(), |max| percent(quota.used, max))),
        ]
    });
    let columns = vec![
        Column::whole("TENANT"),
        Column::whole("RESOURCE"),
        Column::number("USED"),
        Column::number("MAX"),
        Column::number("PERCENT"),
    ];
    Table { columns, rows: rows.collect() }
}

/// Rounded down, so that only what is spent is 100.
fn percent(used: u64, max: u64) -> String {
    match (used, max) {
        (_, 0) => "100".to_owned(),
        (used, max) => (u128::from(used) * 100 / u128::from(max)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_line_a_resource() {
        let quota = |resource: &str, used, max| Quota {
            tenant: "physics".into(),
            resource: resource.into(),
            unit: String::new(),
            used,
            max,
        };
        let quotas = [
            quota("jobs", 999, Some(1000)),
            quota("mem", 65_536, None),
            quota("gpus", 12_600, Some(40_320)),
            quota("gpus:h100", 0, Some(0)),
        ];
        insta::assert_snapshot!(quotas_table(&quotas).render(true, None), @"
        TENANT  RESOURCE   USED  MAX PERCENT
        physics jobs        999 1000      99
        physics mem         64G none
        physics gpus      2 1/2    8      31
        physics gpus:h100     0    0     100
        ");
    }

    #[test]
    fn limits_are_read_with_their_units() {
        let read = |limits: &[&str]| limits_of(&limits.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>());
        let request = read(&["jobs=5", "mem=64G", "gpus:A100=1.5", "cpus=none", "disk=0"]).unwrap();
        let max: Vec<(&str, Option<u64>)> = request.max.iter().map(|(r, m)| (r.as_str(), *m)).collect();
        assert_eq!(
            max,
            [
                ("cpus", None),
                ("disk", Some(0)),
                ("gpus:a100", Some(7560)),
                ("jobs", Some(5)),
                ("mem", Some(65_536))
            ]
        );
        for (limits, said) in [
            (&["jobs"][..], "RESOURCE=none"),
            (&["gpuz=1"], "gpuz"),
            (&["gpus=1/11"], "exact in 5040ths"),
            (&["jobs=1", "jobs=2"], "twice"),
        ] {
            let error = read(limits).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
