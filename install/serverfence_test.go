package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

const (
	fenceName = "dynamic-controller-fence"
	fenceFlag = "--leader-elect-fence-on-server"
	// keep is the annotation of objects that Helm does not delete.
	keep = "helm.sh/resource-policy"
)

// fenceOptions describes the fence of the chart.
func fenceOptions(namespace string) serverfence.Options {
	return serverfence.Options{
		Name: fenceName, LeaseNamespace: namespace, LeaseName: name, Username: account(namespace, name),
	}
}

// fencedChart returns the objects of the chart with the fence.
func fencedChart(
	t *testing.T, namespace string, action admissionregistrationv1.ValidationAction, more string,
) []*unstructured.Unstructured {
	t.Helper()
	return renderedIn(t, namespace, values(t, "serverFence: {enabled: true, action: "+string(action)+"}\n"+more))
}

func argsOf(t *testing.T, objects []*unstructured.Unstructured) []string {
	t.Helper()
	return only[appsv1.Deployment](t, objects, "Deployment").Spec.Template.Spec.Containers[0].Args
}

func TestServerFence_IsThePolicyOfTheLibrary(t *testing.T) {
	for _, namespace := range []string{namespace, "another-namespace"} {
		for _, action := range []admissionregistrationv1.ValidationAction{
			admissionregistrationv1.Deny, admissionregistrationv1.Audit,
		} {
			objects := fencedChart(t, namespace, action, "")
			policy := only[admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy")
			binding := only[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, objects,
				"ValidatingAdmissionPolicyBinding")
			wantPolicy, wantBinding, err := serverfence.Objects(fenceOptions(namespace))
			if err != nil {
				t.Fatal(err)
			}
			wantBinding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{action}
			if diff := cmp.Diff(wantPolicy.Spec, policy.Spec); diff != "" || policy.Name != wantPolicy.Name {
				t.Errorf("%s: the policy %s differs (-library +chart)\n%s", namespace, policy.Name, diff)
			}
			if diff := cmp.Diff(wantBinding.Spec, binding.Spec); diff != "" || binding.Name != wantBinding.Name {
				t.Errorf("%s: the binding %s differs (-library +chart)\n%s", namespace, binding.Name, diff)
			}
			if policy.Annotations[keep] != "keep" || binding.Annotations[keep] != "keep" {
				t.Error("Helm would delete the policy or its binding")
			}
			if !slices.Contains(argsOf(t, objects), fenceFlag) {
				t.Errorf("the platform runs without %s", fenceFlag)
			}
		}
	}
}

func TestServerFence_ExcludesAPIGroups(t *testing.T) {
	objects := rendered(t, values(t, "serverFence: {enabled: true, excludeAPIGroups: [metrics.k8s.io]}"))
	policy := only[admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy")
	rules := policy.Spec.MatchConstraints.ExcludeResourceRules
	if last := rules[len(rules)-1]; !slices.Equal(last.APIGroups, []string{"metrics.k8s.io"}) ||
		!slices.Equal(last.Resources, []string{"*/*"}) {
		t.Errorf("the last excluded rule is %v", last)
	}
	binding := only[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, objects,
		"ValidatingAdmissionPolicyBinding")
	if got := binding.Spec.ValidationActions; !slices.Equal(got,
		[]admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}) {
		t.Errorf("the default action is %v, want Audit", got)
	}
}

func TestServerFence_IsOffByDefault(t *testing.T) {
	objects := rendered(t, nil)
	if slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() == fenceName }) {
		t.Error("the chart contains the policy or its permissions")
	}
	if slices.Contains(argsOf(t, objects), fenceFlag) {
		t.Errorf("the platform runs with %s", fenceFlag)
	}
}

// fencePermissions are those that the platform needs for the fence, in addition to others.
var fencePermissions = []authorizationv1.ResourceAttributes{
	{Resource: "serviceaccounts", Namespace: namespace, Name: name, Verb: "impersonate"},
	{Resource: "configmaps", Namespace: namespace, Verb: "create"},
	{Group: "authentication.k8s.io", Resource: "userextras", Subresource: serverfence.LeaseExtra, Verb: "impersonate"},
	{Group: "authentication.k8s.io", Resource: "userextras", Subresource: serverfence.HolderExtra, Verb: "impersonate"},
}

// The fence is enabled as documented: first with Audit, and with Deny when all replicas send the fields.
func TestPlatform_FencesWritesOnTheServer(t *testing.T) {
	a := newAPI(t)
	a.applyAll(namespaces(t, "shop"))
	const more = permissions + "webhook: {enabled: true}\n"
	objects := fencedChart(t, namespace, admissionregistrationv1.Audit, more)
	a.applyAll(slices.Concat(objects, documents(t, read(t, "../examples/kind/tenant.yaml"))))
	requests := &fencedRequests{T: t, senders: map[string]map[string]bool{}}
	kubeconfig, _ := a.account(requests.wrap)
	a.waitForPermissions(fencePermissions...)
	log := a.start(build(t), append(localArgs(t, objects), "--kubeconfig", kubeconfig))
	log.wait(t, "Fence on the server not enforced, late writes are admitted")
	if err := a.writeAsPlatform("another"); err != nil {
		t.Errorf("with Audit: %v", err)
	}

	for _, obj := range fencedChart(t, namespace, admissionregistrationv1.Deny, more) {
		if err := a.apply(obj); err != nil {
			t.Fatal(err)
		}
	}
	log.wait(t, "Fence on the server enforced")
	a.serveWebApp()
	a.waitForWebhookCertificate()

	lease, err := a.kube.CoordinationV1().Leases(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		t.Fatalf("got the Lease %v and the error %v, want a holder", lease.Spec, err)
	}
	if err := a.writeAsPlatform(*lease.Spec.HolderIdentity); err != nil {
		t.Errorf("a write of the leader: %v", err)
	}
	for _, holder := range []string{"another", ""} {
		if err := a.writeAsPlatform(holder); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), serverfence.Denied) {
			t.Errorf("a write of the holder %q: got the error %v, want a denial", holder, err)
		}
	}
	requests.mu.Lock()
	defer requests.mu.Unlock()
	for _, resource := range []string{"services", "deployments"} {
		if got := slices.Collect(maps.Keys(requests.senders[resource])); !slices.Equal(got,
			[]string{account("shop", "webapps")}) {
			t.Errorf("%s were written by %q", resource, got)
		}
	}
	for _, resource := range []string{"customresourcedefinitions", "webapps/status", "secrets"} {
		if got := slices.Collect(maps.Keys(requests.senders[resource])); !slices.Equal(got,
			[]string{account(namespace, name)}) {
			t.Errorf("%s were written by %q", resource, got)
		}
	}
}

// waitForWebhookCertificate waits until the leader has written the certificate of the webhook.
func (a *api) waitForWebhookCertificate() {
	a.Helper()
	testkit.Eventually(a.T, timeout, func() error {
		webhook, err := a.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(a.Context(),
			"dynamic-controller-webhook", metav1.GetOptions{})
		if err == nil && len(webhook.Webhooks[0].ClientConfig.CABundle) == 0 {
			err = errors.New("the webhook has no caBundle")
		}
		return err
	})
}

// writeAsPlatform creates a ConfigMap as the user of the platform, as a write of the holder of the Lease. If holder is
// empty, the write carries no fields.
func (a *api) writeAsPlatform(holder string) error {
	a.Helper()
	config := a.cluster.Config()
	config.Impersonate.UserName = account(namespace, name)
	if holder != "" {
		config.Impersonate.Extra = map[string][]string{
			serverfence.LeaseExtra: {namespace + "/" + name}, serverfence.HolderExtra: {holder},
		}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		a.Fatal(err)
	}
	_, err = client.CoreV1().ConfigMaps(namespace).Create(a.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}, metav1.CreateOptions{})
	return err
}

// fencedRequests checks the requests of a platform with a fence on the server.
type fencedRequests struct {
	*testing.T
	mu      sync.Mutex                 // Guards senders.
	senders map[string]map[string]bool // The users of writes that carry the fields of the fence, by resource.
}

func (f *fencedRequests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		f.record(r)
		response, err := next.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusForbidden {
			return response, err
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		response.Body = io.NopCloser(bytes.NewReader(body))
		// A probe is denied, and so is a write that reaches the API server before it has observed the new leader.
		if message := string(body); !strings.Contains(message, serverfence.Denied) ||
			strings.Contains(message, "it names none") {
			f.Errorf("denied: %s %s: %s", r.Method, r.URL.Path, message)
		}
		return response, err
	})
}

// isExempt reports whether the policy does not apply to a request.
func isExempt(path string) bool {
	return slices.ContainsFunc([]string{"coordination", "authentication", "authorization"}, func(group string) bool {
		return strings.HasPrefix(path, "/apis/"+group+".k8s.io/")
	})
}

// record records the sender of a write. It fails the test unless the write carries the fields of the fence, and no
// others, or is exempt.
func (f *fencedRequests) record(r *http.Request) {
	call := apiproxy.CallOf(r)
	user := r.Header.Get(transport.ImpersonateUserHeader)
	switch {
	case !call.IsWrite():
		return
	case user == "" && !isExempt(r.URL.Path):
		f.Errorf("%s %s carries no fields", r.Method, r.URL.Path)
		return
	case user == "":
		return
	}
	var fields []string
	for header := range r.Header {
		if header != transport.ImpersonateUserHeader && strings.HasPrefix(header, "Impersonate-") {
			fields = append(fields, strings.ToLower(header))
		}
	}
	slices.Sort(fields)
	if !slices.Equal(fields, []string{
		"impersonate-extra-fence.dynamic-controller.github.io%2fholder",
		"impersonate-extra-fence.dynamic-controller.github.io%2flease",
	}) {
		f.Errorf("%s carries the fields %q", call.Kind(), fields)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.senders[call.Resource] == nil {
		f.senders[call.Resource] = map[string]bool{}
	}
	f.senders[call.Resource][user] = true
}

// A replica without a permission for the fence does not start, so that a rollout stops at its first Pod.
func TestPlatform_ReportsAMissingPermissionForTheFence(t *testing.T) {
	binary := build(t)
	for kind, want := range map[string]string{
		"ClusterRole": "the operator must bind the platform's ServiceAccount to a ClusterRole with verbs [impersonate], " +
			"apiGroups [authentication.k8s.io], resources [userextras/" + serverfence.LeaseExtra,
		"Role": "the operator must grant the platform the verb impersonate on its own user",
	} {
		t.Run(kind, func(t *testing.T) {
			a := newAPI(t)
			objects := fencedChart(t, namespace, admissionregistrationv1.Audit, permissions)
			a.applyAll(slices.Concat(namespaces(t, "shop"), documents(t, read(t, "../examples/kind/tenant.yaml")),
				slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
					return o.GetKind() == kind && o.GetName() == fenceName ||
						o.GetKind() == kind+"Binding" && o.GetName() == fenceName
				})))
			kubeconfig, _ := a.account(func(next http.RoundTripper) http.RoundTripper { return next })
			granted := fencePermissions[:2]
			if kind == "Role" {
				granted = fencePermissions[2:]
			}
			a.waitForPermissions(granted...)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, append(localArgs(t, objects), "--kubeconfig", kubeconfig)...)
			cmd.Env = append(os.Environ(), "POD_NAME=one", "POD_NAMESPACE="+namespace)
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("got the error %v, want exit code 1", err)
			}
			if text := string(out); !strings.Contains(text, fenceFlag+": ") || !strings.Contains(text, want) {
				t.Errorf("got the log\n%s\nwant %q", text, want)
			}
		})
	}
}
