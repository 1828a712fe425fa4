#!/usr/bin/env bash
# Makes certificates with openssl 3, for those who have no cert-manager. Keys are written readable for their owner only.
set -euo pipefail
umask 077

usage() {
  cat >&2 <<'END'
usage: certificates.sh FOLDER authorities              aggregators, agents and readers: .crt and .key of each
       certificates.sh FOLDER aggregator NAME...       aggregator.crt and .key, for every DNS name and IP address given
       certificates.sh FOLDER agent CLUSTER_ID         agent-CLUSTER_ID.crt and .key
       certificates.sh FOLDER reader NAME              reader-NAME.crt and .key
What is there already is replaced, but not an authority: whatever it has signed would be worth nothing.
END
  exit 2
}

# authority NAME
authority() {
  [[ ! -e "$folder/$1.key" ]] || return 0
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -sha256 -days 3650 \
    -config <(printf '[req]\ndistinguished_name=name\nx509_extensions=authority\n[name]\n[authority]\n%s\n%s\n%s\n' \
      'basicConstraints=critical,CA:TRUE' 'keyUsage=critical,keyCertSign,cRLSign' 'subjectKeyIdentifier=hash') \
    -subj "/CN=federator $1" -keyout "$folder/$1.key" -out "$folder/$1.crt" 2>/dev/null
}

# certificate AUTHORITY FILE USAGE ALTERNATIVE_NAMES
certificate() {
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=$2" \
    -config <(printf '[req]\ndistinguished_name=name\n[name]\n') -keyout "$folder/$2.key" -out "$folder/$2.csr" 2>/dev/null
  openssl x509 -req -in "$folder/$2.csr" -CA "$folder/$1.crt" -CAkey "$folder/$1.key" -sha256 -days 365 \
    -set_serial "0x$(openssl rand -hex 16)" -out "$folder/$2.crt" 2>/dev/null \
    -extfile <(printf '%s\n%s\n%s\n%s\n' 'basicConstraints=critical,CA:FALSE' 'keyUsage=critical,digitalSignature' \
      "extendedKeyUsage=$3" "subjectAltName=$4")
  rm "$folder/$2.csr"
}

[[ $# -ge 2 ]] || usage
folder=$1 what=$2
shift 2
mkdir -p "$folder"
case $what:$# in
  authorities:0)
    for name in aggregators agents readers; do authority "$name"; done
    ;;
  aggregator:0) usage ;;
  aggregator:*)
    names=
    for name in "$@"; do
      if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then names+=",IP:$name"; else names+=",DNS:$name"; fi
    done
    certificate aggregators aggregator serverAuth "${names#,}"
    ;;
  agent:1) certificate agents "agent-$1" clientAuth "URI:spiffe://federator/cluster/$1" ;;
  reader:1) certificate readers "reader-$1" clientAuth "DNS:$1" ;;
  *) usage ;;
esac
