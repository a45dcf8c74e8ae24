// fake-devices is a device plugin for a kubelet: it offers GPUs of a node that has none.
//
// Every name says that the devices are fake: GPU-fake-NODE-0. As NVIDIA's plugin does, it gives a container the UUIDs of
// its devices in a variable. It ends when the kubelet empties the folder of plugins; the tests start it again.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	registerTimeout = 60 * time.Second
	checkEvery      = 200 * time.Millisecond
)

type fakeDevices struct {
	plugin.UnimplementedDevicePluginServer
	devices []*plugin.Device
}

func newFakeDevices(node string, count int) *fakeDevices {
	made := &fakeDevices{}
	for number := range count {
		made.devices = append(made.devices, &plugin.Device{
			ID: fmt.Sprintf("GPU-fake-%s-%d", strings.ReplaceAll(node, ".", "-"), number), Health: plugin.Healthy,
		})
	}
	return made
}

func (f *fakeDevices) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (f *fakeDevices) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&plugin.ListAndWatchResponse{Devices: f.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (f *fakeDevices) Allocate(_ context.Context, asked *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	answer := &plugin.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		visible := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}
		answer.ContainerResponses = append(answer.ContainerResponses, &plugin.ContainerAllocateResponse{Envs: visible})
	}
	return answer, nil
}

// register offers the devices of the socket to the kubelet, and waits until it listens.
func register(folder, socket, resource string) error {
	kubelet := "unix://" + filepath.Join(folder, "kubelet.sock")
	connection, err := grpc.NewClient(kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	request := &plugin.RegisterRequest{Version: plugin.Version, Endpoint: filepath.Base(socket), ResourceName: resource}
	_, err = plugin.NewRegistrationClient(connection).Register(ctx, request, grpc.WaitForReady(true))
	return err
}

func main() {
	node := flag.String("node", "", "name of the node, part of each UUID")
	folder := flag.String("folder", plugin.DevicePluginPath, "the kubelet's folder of device plugins")
	resource := flag.String("resource", "nvidia.com/gpu", "the extended resource")
	count := flag.Int("count", 2, "number of devices")
	flag.Parse()
	socket := filepath.Join(*folder, "fake-devices.sock")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	plugin.RegisterDevicePluginServer(server, newFakeDevices(*node, *count))
	go func() { log.Fatal(server.Serve(listener)) }()
	if err := register(*folder, socket, *resource); err != nil {
		log.Fatal(err)
	}
	log.Printf("registered %d fake devices as %s", *count, *resource)
	for {
		if _, err := os.Stat(socket); err != nil {
			log.Fatal("the kubelet has started again")
		}
		time.Sleep(checkEvery)
	}
}
