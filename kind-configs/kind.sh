#!/usr/bin/env bash
# kind.sh up|down TOPOLOGY: a federation of kind clusters, one for each file in the topology's folder.
# eu-1 runs the aggregator and is a member too. Certificates and overlays go to build/kind-TOPOLOGY ($KIND_FOLDER).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
hub=eu-1
image=federator:0.2.0
ingest=federator-$hub-control-plane:30443

fail() {
  echo "kind.sh: $*" >&2
  exit 1
}

need() {
  for tool in "$@"; do
    command -v "$tool" >/dev/null || fail "$tool is missing: install it and put it on the PATH; needed are $*"
  done
}

usage() {
  echo "usage: kind.sh up|down TOPOLOGY, with a topology of $(cd "$here" && echo */ | tr -d /)" >&2
  exit 2
}

[[ $# -eq 2 && -d $here/$2 && $2 =~ ^[0-9]+$ ]] || usage
action=$1 topology=$2
folder=${KIND_FOLDER:-$root/build/kind-$topology}
members=$(cd "$here/$topology" && for file in *.yaml; do echo "${file%.yaml}"; done)

# on CLUSTER ARGUMENTS: kubectl on one of the clusters
on() {
  kubectl --context "kind-federator-$1" "${@:2}"
}

# secret CLUSTER NAME PAIR: a Secret with a certificate and its key
secret() {
  on "$1" create secret tls "$2" --namespace federator --dry-run=client -o yaml \
    --cert "$folder/tls/$3.crt" --key "$folder/tls/$3.key" | on "$1" apply --server-side -f -
}

# overlay FOLDER: a kustomization from stdin; its bases are named by ../deploy
overlay() {
  mkdir -p "$folder/$1"
  cat >"$folder/$1/kustomization.yaml"
}

make_certificates() {
  local certificates=$root/deploy/certificates.sh
  "$certificates" "$folder/tls" authorities
  "$certificates" "$folder/tls" aggregator localhost 127.0.0.1 "${ingest%:*}"
  "$certificates" "$folder/tls" reader me
  for member in $members; do "$certificates" "$folder/tls" agent "$member"; done
}

write_overlays() {
  # Kustomize takes files from below a kustomization only.
  rm -rf "$folder/deploy" "$folder/hub" "$folder"/agent-*
  cp -r "$root/deploy" "$folder/deploy"
  overlay hub <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: federator
resources: [../deploy/aggregator]
configMapGenerator:
  - name: federator-agents-ca
    files: [ca.crt=agents.crt]
  - name: federator-clients-ca
    files: [ca.crt=readers.crt]
patches:
  - patch: |
      - {op: add, path: /spec/type, value: NodePort}
      - {op: add, path: /spec/ports/0/nodePort, value: 30090}
    target: {kind: Service, name: federator-aggregator}
  - patch: |
      - {op: add, path: /spec/type, value: NodePort}
      - {op: add, path: /spec/ports/0/nodePort, value: 30443}
    target: {kind: Service, name: federator-aggregator-ingest}
END
  cp "$folder/tls/agents.crt" "$folder/tls/readers.crt" "$folder/hub"
  for member in $members; do
    overlay "agent-$member" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: federator
resources: [../deploy/agent]
configMapGenerator:
  - name: federator-agent
    literals:
      - FEDERATOR_CLUSTER_ID=$member
      - FEDERATOR_AGGREGATOR=$ingest
  - name: federator-aggregator-ca
    files: [ca.crt=aggregators.crt]
END
    cp "$folder/tls/aggregators.crt" "$folder/agent-$member"
  done
}

up() {
  need docker kind kubectl openssl
  docker info >/dev/null 2>&1 || fail "docker is there, but its daemon does not answer"
  mkdir -p "$folder"
  make_certificates
  write_overlays
  docker build --tag "$image" "$root"
  local existing
  existing=$(kind get clusters 2>/dev/null || true)
  for member in $members; do
    grep -qx "federator-$member" <<<"$existing" || kind create cluster --config "$here/$topology/$member.yaml"
    kind load docker-image "$image" --name "federator-$member"
    on "$member" apply --server-side -f "$root/deploy/agent/namespace.yaml"
  done
  secret "$hub" federator-aggregator-tls aggregator
  on "$hub" apply --server-side -k "$folder/hub"
  on "$hub" rollout status --namespace federator statefulset/federator-aggregator --timeout 5m
  for member in $members; do
    secret "$member" federator-agent-tls "agent-$member"
    on "$member" apply --server-side -k "$folder/agent-$member"
  done
  for member in $members; do
    on "$member" rollout status --namespace federator deployment/federator-agent --timeout 5m
  done
  cat <<END

The federation of $(wc -w <<<"$members") clusters is up. To ask it:

  export FEDERATOR_SERVER=localhost:9090
  export FEDERATOR_AGGREGATOR_CA_FILE=$folder/tls/aggregators.crt
  export FEDERATOR_TLS_CERT_FILE=$folder/tls/reader-me.crt
  export FEDERATOR_TLS_PRIVATE_KEY_FILE=$folder/tls/reader-me.key
  federator clusters
  federator get pods

To end it: make kind-down TOPOLOGY=$topology
END
}

down() {
  need docker kind
  for member in $members; do kind delete cluster --name "federator-$member"; done
  rm -rf "$folder"/{deploy,hub,tls} "$folder"/agent-*
}

case $action in
  up | down) "$action" ;;
  *) usage ;;
esac
