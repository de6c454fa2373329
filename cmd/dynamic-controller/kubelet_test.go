package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// kubelet forwards ports of Pods. All Pods of its node use the host network.
type kubelet struct {
	*api
	node     string
	forwards atomic.Int32 // number of forwarded connections
}

// startKubelet creates a node whose kubelet runs in this process.
func (a *api) startKubelet() *kubelet {
	a.Helper()
	k := &kubelet{api: a, node: a.namespace}
	server := httptest.NewTLSServer(k)
	a.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		a.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		a.Fatal(err)
	}
	nodes := a.kube.CoreV1().Nodes()
	node, err := nodes.Create(a.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.node}},
		metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(a.Context()), k.node, metav1.DeleteOptions{}); err != nil {
			a.Error(err)
		}
	})
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.Hostname()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := nodes.UpdateStatus(a.Context(), node, metav1.UpdateOptions{}); err != nil {
		a.Fatal(err)
	}
	return k
}

// addPod creates a Pod with a container port for the diagnostics.
func (k *kubelet) addPod(namespace, name string, port int32) {
	k.Helper()
	pods := k.kube.CoreV1().Pods(namespace)
	_, err := pods.Create(k.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: k.node, Containers: []corev1.Container{{
			Name: "dynamic-controller", Image: "dynamic-controller",
			Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: port}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() {
		now := int64(0)
		if err := pods.Delete(context.WithoutCancel(k.Context()), name,
			metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			k.Error(err)
		}
	})
}

// ServeHTTP forwards a port of a Pod, like a kubelet with the SPDY protocol.
func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/portForward/") {
		http.NotFound(w, r)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		k.Errorf("handshake: %v", err)
		return
	}
	streams := make(chan httpstream.Stream, 2)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r,
		func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		})
	if connection == nil {
		return
	}
	defer connection.Close()
	k.forwards.Add(1)
	byType := map[string]httpstream.Stream{}
	for range 2 {
		select {
		case s := <-streams:
			byType[s.Headers().Get(corev1.StreamType)] = s
		case <-connection.CloseChan():
			return
		}
	}
	failures, data := byType[corev1.StreamTypeError], byType[corev1.StreamTypeData]
	pod, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", data.Headers().Get(corev1.PortHeader)))
	if err != nil {
		_, _ = io.WriteString(failures, err.Error())
		_ = failures.Close()
		_ = data.Close()
		<-connection.CloseChan()
		return
	}
	defer pod.Close()
	go func() {
		_, _ = io.Copy(pod, data)
		_ = pod.Close()
	}()
	_, _ = io.Copy(data, pod)
	_ = failures.Close()
}
