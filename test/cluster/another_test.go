package cluster_test

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/test/cluster"
)

func TestAddAPIServer_SharesTheData(t *testing.T) {
	c := shared.Cluster(t)
	added, err := c.AddAPIServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = added.Stop() }) // if the test fails before
	if added.Config().Host == c.Config().Host {
		t.Errorf("both API servers have the address %s", c.Config().Host)
	}
	created, err := clientset(t, c).CoreV1().ConfigMaps(metav1.NamespaceDefault).
		Create(t.Context(), configMapNamed("shared-"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configMaps := clientset(t, added).CoreV1().ConfigMaps(metav1.NamespaceDefault)
	if err := configMaps.Delete(t.Context(), created.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	_, err = clientset(t, c).CoreV1().ConfigMaps(metav1.NamespaceDefault).
		Get(t.Context(), created.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("got error %v for an object that was deleted through the other API server", err)
	}

	pid, err := added.APIServer().PID()
	if err != nil {
		t.Error(err)
	}
	if err := added.Stop(); err != nil {
		t.Error(err)
	}
	if after, err := added.APIServer().PID(); err == nil {
		t.Errorf("process %d was running, and process %d runs after Stop", pid, after)
	}
	if err := c.WaitReady(t.Context()); err != nil {
		t.Errorf("the cluster is not ready after the other API server was stopped: %v", err)
	}
	if _, err := added.AddAPIServer(t.Context()); !errors.Is(err, cluster.ErrExternal) {
		t.Errorf("got error %v, want %v", err, cluster.ErrExternal)
	}
}
