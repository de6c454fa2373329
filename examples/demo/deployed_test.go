package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestDeployed_UsesPods uses a fake client, because the control plane of the tests has no kubelet: Pods neither become
// ready nor have logs.
func TestDeployed_UsesPods(t *testing.T) {
	labels := map[string]string{"app.kubernetes.io/name": "dynamic-controller"}
	pod := func(name string, ready corev1.ConditionStatus, restarts int32) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "some", Labels: labels},
			Status: corev1.PodStatus{
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
				ContainerStatuses: []corev1.ContainerStatus{{RestartCount: restarts}},
			},
		}
	}
	kube := fake.NewClientset(
		pod("one", corev1.ConditionTrue, 0), pod("two", corev1.ConditionTrue, 0), pod("cold", corev1.ConditionFalse, 0))
	killer, killed := filepath.Join(t.TempDir(), "kill"), filepath.Join(t.TempDir(), "killed")
	script := "#!/bin/sh\necho $1 $2 >" + killed + "\n[ $2 = one ] || { echo no such Pod; exit 3; }\n"
	if err := os.WriteFile(killer, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := findDeployed(t.Context(), kube, "some", killer)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.stop(nil); err != nil {
			t.Error(err)
		}
	}()
	if len(d.logs()) != 2 || d.logs()["cold"] != nil {
		t.Errorf("the replicas are %v", d.logs())
	}
	err = waitFor(t.Context(), condition{"the log is read", func(context.Context) error {
		if !strings.Contains(d.logs()["two"].end(), "fake logs") {
			return errors.New("the log is empty")
		}
		return nil
	}})
	if err != nil {
		t.Error(err)
	}

	if err := d.kill(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(killed); string(got) != "some one\n" {
		t.Errorf("%q was killed", got)
	}
	if err := d.kill(t.Context(), "other"); err == nil || !strings.Contains(err.Error(), "no such Pod") {
		t.Errorf("got the error %v", err)
	}

	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("long enough"))
	defer cancel()
	want := `condition "the Pod one is ready again" was not met`
	if err := d.revive(short, "one"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got the error %v for a Pod that has not been restarted", err)
	}
	restarted := pod("one", corev1.ConditionTrue, 1)
	if _, err := kube.CoreV1().Pods("some").UpdateStatus(t.Context(), restarted, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := d.revive(t.Context(), "one"); err != nil {
		t.Error(err)
	}
}
