// fake-driver is a driver of Dynamic Resource Allocation for GPUs of a node that has none.
//
// It publishes devices as NVIDIA's driver does with consumableShares=memory: any part of the memory may be claimed, and a
// claim without an amount takes all of it. A container gets the UUIDs of its claim in a variable, by CDI. Every name says
// that the devices are fake: GPU-fake-dra-NODE-0.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resources "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const kubeletFolder = "/var/lib/kubelet"

type fakeDriver struct {
	name, node, product, cdiFolder string
	memory                         resource.Quantity
	uuids                          map[string]string
}

// publish makes the devices gpu-0, gpu-1 and so on.
func (d *fakeDriver) publish(count int) []resources.Device {
	var found []resources.Device
	for number := range count {
		name := fmt.Sprintf("gpu-%d", number)
		d.uuids[name] = fmt.Sprintf("GPU-fake-dra-%s-%d", strings.ReplaceAll(d.node, ".", "-"), number)
		found = append(found, d.device(name))
	}
	return found
}

func (d *fakeDriver) device(name string) resources.Device {
	kind, shared, least := "gpu", true, resource.MustParse("1Mi")
	uuid := d.uuids[name]
	parts := resources.CapacityRequestPolicyRange{Min: &least, Max: &d.memory, Step: &least}
	policy := resources.CapacityRequestPolicy{Default: &d.memory, ValidRange: &parts}
	return resources.Device{
		Name:                     name,
		AllowMultipleAllocations: &shared,
		Attributes: map[resources.QualifiedName]resources.DeviceAttribute{
			"type": {StringValue: &kind}, "uuid": {StringValue: &uuid}, "productName": {StringValue: &d.product},
		},
		Capacity: map[resources.QualifiedName]resources.DeviceCapacity{
			"memory": {Value: d.memory, RequestPolicy: &policy},
		},
	}
}

// PrepareResourceClaims writes the CDI file of each claim. The kubelet repeats the call after it has started again.
func (d *fakeDriver) PrepareResourceClaims(
	_ context.Context, claims []*resources.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	found := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		found[claim.UID] = d.prepare(claim)
	}
	return found, nil
}

func (d *fakeDriver) prepare(claim *resources.ResourceClaim) kubeletplugin.PrepareResult {
	var uuids []string
	var devices []kubeletplugin.Device
	for _, each := range claim.Status.Allocation.Devices.Results {
		if each.Driver != d.name {
			continue
		}
		uuids = append(uuids, d.uuids[each.Device])
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{each.Request}, PoolName: each.Pool, DeviceName: each.Device, ShareID: each.ShareID,
			CDIDeviceIDs: []string{d.kind() + "=" + string(claim.UID)},
		})
	}
	return kubeletplugin.PrepareResult{Devices: devices, Err: d.write(claim.UID, uuids)}
}

// write renames the file into its place: a runtime must not read a part of it.
func (d *fakeDriver) write(claim types.UID, uuids []string) error {
	edits := map[string]any{"env": []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Join(uuids, ",")}}
	device := map[string]any{"name": string(claim), "containerEdits": edits}
	content, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": d.kind(), "devices": []any{device}})
	if err != nil {
		return err
	}
	partial := d.file(claim) + ".partial"
	return errors.Join(os.WriteFile(partial, content, 0o644), os.Rename(partial, d.file(claim)))
}

func (d *fakeDriver) kind() string { return d.name + "/claim" }

func (d *fakeDriver) file(claim types.UID) string {
	return filepath.Join(d.cdiFolder, string(claim)+".json")
}

func (d *fakeDriver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	found := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.file(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		found[claim.UID] = err
	}
	return found, nil
}

func (d *fakeDriver) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
}

func main() {
	d := &fakeDriver{uuids: map[string]string{}}
	flag.StringVar(&d.name, "driver", "gpu.nvidia.com", "name of the driver")
	flag.StringVar(&d.node, "node", "", "name of the node, part of each UUID")
	flag.StringVar(&d.product, "product", "Fake-80G", "name of the product")
	flag.StringVar(&d.cdiFolder, "cdi", "/var/run/cdi", "folder that the runtime reads")
	memory := flag.String("memory", "81920Mi", "of each device")
	kubeconfig := flag.String("kubeconfig", "", "credentials of the node")
	count := flag.Int("count", 2, "number of devices")
	flag.Parse()
	d.memory = resource.MustParse(*memory)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, d, *kubeconfig, *count); err != nil {
		log.Fatal(err)
	}
}

// run publishes the devices, and serves the kubelet until a signal.
func run(ctx context.Context, d *fakeDriver, kubeconfig string, count int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubeletFolder, "plugins", d.name)
	registry := filepath.Join(kubeletFolder, "plugins_registry")
	if err := errors.Join(os.MkdirAll(data, 0o750), os.MkdirAll(registry, 0o750)); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(
		ctx, d, kubeletplugin.DriverName(d.name), kubeletplugin.NodeName(d.node), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.PluginDataDirectoryPath(data),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: d.publish(count)}}}
	pools := map[string]resourceslice.Pool{d.node: pool}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		return err
	}
	log.Printf("published %d fake devices of %s", count, d.name)
	<-ctx.Done()
	return nil
}
