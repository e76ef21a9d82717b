//! The OpenAPI document: it is complete, and its examples work.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::fixture::post;
use crate::server::fixture::{Running, in_memory};

/// The rules that `tidegate serve --demo` serves.
pub const DEMO: &str = include_str!("../../../../tidegate-cli/src/demo.yaml");
/// The file that mounts the routes.
const ROUTER: &str = include_str!("../../../src/v1.rs");

pub async fn document(server: &Running) -> Value {
    let response = reqwest::get(server.url("/v1/openapi.json")).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn document_has_exactly_the_routes_of_the_router() {
    let server = Running::start(in_memory(DEMO)).await;
    let document = document(&server).await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let paths = document["paths"].as_object().unwrap();
    let routes = ROUTER.split(".route(\"").skip(1).map(|rest| {
        let (path, rest) = rest.split_once('"').unwrap();
        (format!("/v1{path}"), rest.trim_start_matches([',', ' ']).split('(').next().unwrap())
    });
    let routes: BTreeSet<(String, &str)> = routes.collect();
    let documented = paths.iter().flat_map(|(path, operations)| {
        operations.as_object().unwrap().keys().map(|method| (path.clone(), method.as_str()))
    });
    assert_eq!(documented.collect::<BTreeSet<_>>(), routes);
    assert_eq!(routes.len(), 9);
    assert!(server.stop().await);
}

#[tokio::test]
async fn references_lead_to_schemas_and_requests_refuse_unknown_fields() {
    let server = Running::start(in_memory(DEMO)).await;
    let document = document(&server).await;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    assert!(references.len() > 20, "{references:?}");
    for reference in references {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        assert!(schemas.contains_key(name), "{name}");
    }
    let requests = schemas.iter().filter(|(name, _)| name.contains("Request"));
    let requests: Vec<(&String, &Value)> = requests.collect();
    assert!(requests.len() >= 8, "{requests:?}");
    for (name, schema) in requests {
        assert_eq!(schema["additionalProperties"], false, "{name}");
    }
    assert_eq!(schemas["ProblemBody"]["required"], json!(["type", "title", "status", "detail"]));
    assert!(server.stop().await);
}

fn collect_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| collect_references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn each_example_is_admitted_by_the_demo() {
    let server = Running::start(in_memory(DEMO)).await;
    let document = document(&server).await;
    let mut tried = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let examples = &operations["post"]["requestBody"]["content"]["application/json"]["examples"];
        for (name, example) in examples.as_object().unwrap_or(&Map::new()) {
            let endpoint = path.strip_prefix("/v1/").unwrap();
            let reply = post(&server, endpoint, &example["value"]).await;
            assert_eq!(reply.status, 200, "{path} {name}: {reply:?}");
            assert_conforms(&document, "DecisionResponse", &reply.body);
            tried += 1;
        }
    }
    assert_eq!(tried, 11);
    assert!(server.stop().await);
}

/// Asserts that an object has the required fields of its schema, and no others than its fields.
fn assert_conforms(document: &Value, schema: &str, body: &Value) {
    let schema = &document["components"]["schemas"][schema];
    let body = body.as_object().unwrap();
    for required in schema["required"].as_array().unwrap() {
        assert!(body.contains_key(required.as_str().unwrap()), "{required} {body:?}");
    }
    for field in body.keys() {
        assert!(schema["properties"].get(field).is_some(), "{field} is not documented");
    }
}
