package statusclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

const (
	// portName is the name of the container port for the diagnostics.
	portName = "metrics"
	// containerName is the name of the platform's container in the manifests and the chart.
	containerName = "dynamic-controller"
)

// Lease identifies the Lease of the platform.
type Lease struct{ Namespace, Name string }

// NewForLeader returns a Client for the Pod that holds the Lease. It connects through the API server. cfg contains the
// credentials for the API server, and credentials those for the replica. If settings is nil, the certificate of the
// replica is not verified.
func NewForLeader(
	ctx context.Context, cfg, credentials *rest.Config, lease Lease, settings *tls.Config,
) (*Client, error) {
	pod, port, err := findLeader(ctx, cfg, lease)
	if err != nil {
		return nil, err
	}
	forward, err := newForwarder(cfg, lease.Namespace, pod, port)
	if err != nil {
		return nil, err
	}
	return newForDialer(forward.dial, credentials, settings)
}

// findLeader returns the name of the Pod that holds the Lease, and its diagnostics port.
func findLeader(ctx context.Context, cfg *rest.Config, lease Lease) (pod string, port int32, err error) {
	leases, err := coordinationv1.NewForConfig(cfg)
	if err != nil {
		return "", 0, err
	}
	held, err := leases.Leases(lease.Namespace).Get(ctx, lease.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", 0, fmt.Errorf("the Lease %s/%s does not exist: set --platform-namespace, or --url", lease.Namespace,
			lease.Name)
	}
	if err != nil {
		return "", 0, fmt.Errorf("read the Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	holder := ptr.Deref(held.Spec.HolderIdentity, "")
	if holder == "" {
		return "", 0, fmt.Errorf("no replica holds the Lease %s/%s", lease.Namespace, lease.Name)
	}
	pod, _, _ = strings.Cut(holder, "_") // the names of Pods contain no underscores
	pods, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return "", 0, err
	}
	leader, err := pods.Pods(lease.Namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", 0, fmt.Errorf("read the Pod of the leader %q: %w; if the leader does not run in a Pod, set --url", holder,
			err)
	}
	port, err = portOf(leader)
	return pod, port, err
}

// portOf returns the diagnostics port. It prefers the platform's container, because other containers, such
// as a proxy, can have a port with the same name.
func portOf(pod *corev1.Pod) (number int32, err error) {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == portName && (number == 0 || container.Name == containerName) {
				number = port.ContainerPort
			}
		}
	}
	if number != 0 {
		return number, nil
	}
	return 0, fmt.Errorf("pod %s/%s has no container port with the name %s: enable the diagnostics with "+
		"--metrics-bind-address, or set --url", pod.Namespace, pod.Name, portName)
}
