#!/usr/bin/env bash
# Writes the go.mod of each module: the kubelet of the release of tests/kube, and a runtime. CONTAINERD=v2.1.9 ./update.sh
set -euo pipefail
cd "$(dirname "$0")/kubelet"
release=$(sed -n 's#^\s*k8s.io/kubernetes \(v[0-9.]*\).*#\1#p' ../../../kube/tools/kubernetes/go.mod)
rm -f go.mod go.sum
cp ../../../kube/tools/kubernetes/go.mod go.mod
go mod edit -module=node-test-tools
for tool in $(go mod edit -json | sed -n '/"Tool"/,/]/s#.*"Path": "\(.*\)".*#\1#p'); do go mod edit -droptool="$tool"; done
go get -tool "k8s.io/kubernetes/cmd/kubelet@$release"
go mod tidy
go mod edit -go=1.26.0
# CDI, by which a DRA driver gives devices to containers, needs containerd 1.7; many distributions have an older one.
cd ../runtime
rm -f go.mod go.sum
go mod init runtime-test-tools
containerd=github.com/containerd/containerd/v2/cmd
plugins=github.com/containernetworking/plugins/plugins
go get -tool "$containerd/containerd@${CONTAINERD:-v2.1.9}" "$containerd/containerd-shim-runc-v2@${CONTAINERD:-v2.1.9}" \
  "$containerd/ctr@${CONTAINERD:-v2.1.9}" "$plugins/main/ptp@${PLUGINS:-v1.9.0}" "$plugins/main/loopback@${PLUGINS:-v1.9.0}" \
  "$plugins/ipam/host-local@${PLUGINS:-v1.9.0}"
go mod edit -go=1.26.0
