package onserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/servingcert"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/webhook"
	"github.com/dynamic-controller/engine/internal/testkit"
)

const (
	name      = "rotation"
	namespace = metav1.NamespaceDefault
	timeout   = 2 * time.Minute
	day       = 24 * time.Hour
)

const text = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: crates}
spec:
  type: {group: onserver.example.com, version: v1, kind: Crate, schema: {type: object}}
  resources: [{id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}]
`

// replica is a replica with only the webhook, which rejects all Blueprints.
type replica struct {
	clock *clocktesting.FakeClock
	port  int32
}

// startReplica runs a replica until the test ends.
func startReplica(t *testing.T, clock *clocktesting.FakeClock) *replica {
	t.Helper()
	cfg := shared.Cluster(t).Config()
	options := servingcert.Options{Namespace: namespace, Name: name, Webhook: webhook.Name, Clock: clock}
	loader, err1 := servingcert.NewLoader(logr.Discard(), cfg, options)
	manager, err2 := servingcert.NewManager(logr.Discard(), cfg, options)
	listener, err3 := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	handler := webhook.NewHandler(logr.Discard(), func(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error) {
		return acceptance.Verdict{Reason: "Invalid", Message: "spec: is wrong", Permanent: true}, nil
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: timeout}
	// Every request needs a new connection, and therefore a handshake with the current certificate.
	server.SetKeepAlivesEnabled(false)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = loader.Run(ctx) })
	running.Go(func() { _ = manager.Run(ctx) })
	running.Go(func() {
		_ = server.Serve(tls.NewListener(listener, &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: loader.GetCertificate,
		}))
	})
	t.Cleanup(func() {
		cancel()
		_ = server.Close()
		running.Wait()
	})
	return &replica{clock, int32(number)}
}

// step advances the clock to a time, and then further in small steps until check returns nil.
func (r *replica) step(t *testing.T, to time.Time, check func() error) {
	t.Helper()
	r.clock.SetTime(to)
	testkit.Eventually(t, timeout, func() error {
		if err := check(); err != nil {
			r.clock.Step(10 * time.Second)
			return fmt.Errorf("at %s: %w", r.clock.Now(), err)
		}
		return nil
	})
}

// install creates the Service and the ValidatingWebhookConfiguration. There is no kube-proxy, so the Service is an
// alias for localhost.
func install(t *testing.T, kube kubernetes.Interface, port int32) {
	t.Helper()
	_, err1 := kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	configs := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err2 := configs.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: webhook.Name,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
				Namespace: namespace, Name: name, Path: ptr.To(webhook.Path), Port: ptr.To(port),
			}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"platform.example.com"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"blueprints"},
				},
			}},
			FailurePolicy: ptr.To(admissionregistrationv1.Ignore), TimeoutSeconds: ptr.To(int32(5)),
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(
			configs.Delete(ctx, name, metav1.DeleteOptions{}),
			kube.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{}),
			kube.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
	})
}

func define(t *testing.T) {
	t.Helper()
	crd, err := blueprint.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	crds, err := clientset.NewForConfig(shared.Cluster(t).Config())
	if err == nil {
		_, err = crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// The API server uses the real clock, so the fake clock starts 310 days in the past. Every certificate that serves a
// request is then still valid. An authority is renewed after 243 days, and a certificate after 60 days.
func TestRotation_NoRequestFails(t *testing.T) {
	cfg := shared.Cluster(t).Config()
	kube, err1 := kubernetes.NewForConfig(cfg)
	client, err2 := dynamic.NewForConfig(cfg)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	define(t)
	now := time.Now()
	clock := clocktesting.NewFakeClock(now.Add(-310 * day))
	r := startReplica(t, clock)
	install(t, kube, r.port)
	published := func(n int) func() error {
		return func() error {
			config, err := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), name,
				metav1.GetOptions{})
			if err != nil {
				return err
			}
			if all, _ := cert.ParseCertsPEM(config.Webhooks[0].ClientConfig.CABundle); len(all) != n {
				return fmt.Errorf("%d authorities are published, want %d", len(all), n)
			}
			return nil
		}
	}
	// created returns a check that succeeds once the served certificate was created at the given time or later.
	created := func(at time.Time) func() error {
		return func() error {
			conn, err := tls.Dial("tcp", net.JoinHostPort("localhost", fmt.Sprint(r.port)),
				&tls.Config{InsecureSkipVerify: true})
			if err != nil {
				return err
			}
			defer conn.Close()
			begins := conn.ConnectionState().PeerCertificates[0].NotBefore.Add(time.Hour)
			if begins.Before(at.Truncate(time.Second)) {
				return fmt.Errorf("the certificate was created at %s", begins)
			}
			return nil
		}
	}
	r.step(t, now.Add(-310*day), published(1))
	r.step(t, now.Add(-69*day), created(now.Add(-69*day)))

	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	blueprints := client.Resource(blueprint.GroupVersionResource)
	request := func(ctx context.Context) error {
		_, err := blueprints.Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "spec: is wrong") {
			return nil
		}
		return fmt.Errorf("the Blueprint was not rejected by the webhook: %w", err)
	}
	testkit.Eventually(t, timeout, func() error { return request(t.Context()) })
	requests := startRequests(t, request)
	for _, step := range []struct {
		at   time.Time
		done func() error
	}{
		{now.Add(-66 * day), published(2)},
		{now.Add(-8 * day), created(now.Add(-8 * day))},
		{now.Add(-8*day + 2*time.Hour), published(1)},
	} {
		r.step(t, step.at, step.done)
		requests.waitForMore(t)
	}
	requests.stop()
	if n := requests.ended.Load(); len(requests.failures) > 0 {
		t.Errorf("%d of %d requests failed: %v", len(requests.failures), n,
			errors.Join(requests.failures[:min(len(requests.failures), 5)]...))
	}
}

// requests sends one request after the other.
type requests struct {
	ended    atomic.Int64
	failures []error // may be read after stop
	stop     func()
}

func startRequests(t *testing.T, send func(context.Context) error) *requests {
	t.Helper()
	r := &requests{}
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		for ; ctx.Err() == nil; r.ended.Add(1) {
			if err := send(context.WithoutCancel(ctx)); err != nil {
				r.failures = append(r.failures, err)
			}
		}
	})
	r.stop = func() {
		cancel()
		sending.Wait()
	}
	return r
}

// waitForMore waits until a request has ended that had not begun when waitForMore was called.
func (r *requests) waitForMore(t *testing.T) {
	t.Helper()
	begun := r.ended.Load() + 1
	testkit.Eventually(t, timeout, func() error {
		if n := r.ended.Load(); n <= begun {
			return fmt.Errorf("%d requests have ended", n)
		}
		return nil
	})
}
