#!/usr/bin/env bash
# Writes the go.mod of each module for another release: KUBERNETES=1.36.3 KWOK=v0.8.0 HELM=v3.19.4 ./update.sh
# kwok and helm have modules of their own because they need other patches of the same modules.
set -euo pipefail
cd "$(dirname "$0")/kubernetes"
release=${KUBERNETES:-1.36.3}
rm -f go.mod go.sum
go mod init kube-test-tools
published=$(go mod download -json "k8s.io/kubernetes@v$release" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
# k8s.io/kubernetes replaces its staging modules by local folders, and Go ignores replacements in a dependency. So each
# is repeated here with its published module.
sed -n 's#^\s*\(k8s.io/[a-z-]*\) => ./staging/.*#\1#p' "$published" | while read -r module; do
  go mod edit -replace "$module=$module@v0.${release#1.}"
done
# The etcd release that Kubernetes is built with, so that etcd changes no version of a shared dependency.
etcd=$(sed -n 's#^\s*go.etcd.io/etcd/api/v3 \(v[^ ]*\).*#\1#p' "$published" | head -1)
go get -tool "go.etcd.io/etcd/server/v3@$etcd" "k8s.io/kubernetes/cmd/kube-apiserver@v$release" \
  "k8s.io/kubernetes/cmd/kube-scheduler@v$release" "k8s.io/kubernetes/cmd/kube-controller-manager@v$release"
go mod edit -go=1.26.0
cd ../kwok
rm -f go.mod go.sum
go mod init kwok-test-tool
go get -tool "sigs.k8s.io/kwok/cmd/kwok@${KWOK:-v0.8.0}"
go mod edit -go=1.26.0
cd ../helm
rm -f go.mod go.sum
go mod init helm-test-tool
go get -tool "helm.sh/helm/v3/cmd/helm@${HELM:-v3.19.4}"
go mod edit -go=1.26.0
