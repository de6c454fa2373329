package install

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

var (
	blueprints = schema.GroupVersionResource{
		Group: "platform.example.com", Version: "v1alpha1", Resource: "blueprints",
	}
	webapps = schema.GroupVersionResource{Group: "demo.example.com", Version: "v1", Resource: "webapps"}
)

// permissions are the values for the Blueprint of the demonstration, which runs as a ServiceAccount.
const permissions = `
permissions:
  - apiGroups: [demo.example.com]
    resources: [webapps]
    verbs: [get, list, watch, patch, delete]
  - apiGroups: [demo.example.com]
    resources: [webapps/status]
    verbs: [patch]
  - apiGroups: [""]
    resources: [configmaps, services]
    verbs: [list, watch]
  - apiGroups: [apps]
    resources: [deployments]
    verbs: [list, watch]
  - apiGroups: [events.k8s.io]
    resources: [events]
    verbs: [create]
`

// The platform runs with the arguments and the permissions of the chart, and no request is denied.
func TestPlatform_RunsWithThePermissionsOfTheChart(t *testing.T) {
	binary := build(t)
	for name, more := range map[string]string{
		"with the defaults":    "",
		"in a namespace":       "namespaces: [shop]\n",
		"with flow control":    "flowControl: {enabled: true, identities: [{namespace: shop, name: webapps}]}\n",
		"with a configuration": "configuration: {reconciling: {workers: 3}, tracing: {samplingRatePerMillion: 1000000}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			objects := rendered(t, values(t, permissions+more))
			a := newAPI(t)
			a.applyAll(namespaces(t, "shop"))
			a.applyAll(slices.Concat(objects, documents(t, read(t, "../examples/kind/tenant.yaml"))))
			schemas := &flowSchemas{seen: map[string]map[string]bool{}}
			kubeconfig, proxy := a.account(schemas.wrap)
			a.waitForPermissions()
			a.start(binary, append(localArgs(t, objects), "--kubeconfig", kubeconfig))
			a.serveWebApp()
			a.requireAllowed(proxy.Calls(), name == "in a namespace")
			if name == "with flow control" {
				a.requireFlowSchemas(schemas)
			}
		})
	}
}

// build builds the program.
func build(t *testing.T) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../cmd/dynamic-controller", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return binary
}

// account returns a kubeconfig with a token for the platform's ServiceAccount, and a proxy that records its calls. wrap
// can inspect its requests and the responses.
func (a *api) account(wrap transport.WrapperFunc) (kubeconfig string, calls *apiproxy.Proxy) {
	a.Helper()
	proxy, err := apiproxy.Start(a.cluster.Config(), wrap)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(proxy.Close)
	token, err := a.kube.CoreV1().ServiceAccounts(namespace).CreateToken(a.Context(), name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: proxy.URL(), CertificateAuthorityData: proxy.CAData()}
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	path := filepath.Join(a.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		a.Fatal(err)
	}
	return path, proxy
}

// waitForPermissions waits until the platform's ServiceAccount has its permissions. The API server reads roles from a
// cache, and the rules of the aggregated role are set by a controller.
func (a *api) waitForPermissions(more ...authorizationv1.ResourceAttributes) {
	a.Helper()
	for _, want := range append(more, []authorizationv1.ResourceAttributes{
		{Group: "demo.example.com", Resource: "webapps", Subresource: "status", Verb: "patch", Namespace: "shop"},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Verb: "create"},
		{Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace, Verb: "create"},
		{Group: "apps", Resource: "controllerrevisions", Namespace: namespace, Verb: "create"},
		{Group: "events.k8s.io", Resource: "events", Namespace: metav1.NamespaceDefault, Verb: "create"},
		{Resource: "serviceaccounts", Namespace: "shop", Name: "webapps", Verb: "impersonate"},
	}...) {
		testkit.Eventually(a.T, timeout, func() error {
			spec := authorizationv1.SubjectAccessReviewSpec{User: account(namespace, name), ResourceAttributes: &want}
			review := &authorizationv1.SubjectAccessReview{Spec: spec}
			review, err := a.kube.AuthorizationV1().SubjectAccessReviews().Create(a.Context(), review, metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				err = fmt.Errorf("the platform is not allowed to %s %s", want.Verb, want.Resource)
			}
			return err
		})
	}
}

// account returns the name of the user that a ServiceAccount authenticates as.
func account(namespace, name string) string { return "system:serviceaccount:" + namespace + ":" + name }

// localArgs returns the arguments of the Deployment with free local ports and a local configuration file.
func localArgs(t *testing.T, objects []*unstructured.Unstructured) (args []string) {
	t.Helper()
	for _, arg := range only[appsv1.Deployment](t, objects, "Deployment").Spec.Template.Spec.Containers[0].Args {
		flag, file, _ := strings.Cut(arg, "=")
		switch {
		case strings.HasSuffix(flag, "-bind-address"):
			arg = flag + "=127.0.0.1:0"
		case flag == "--config":
			file = filepath.Join(t.TempDir(), filepath.Base(file))
			data := only[corev1.ConfigMap](t, objects, "ConfigMap").Data[filepath.Base(file)]
			if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			arg = flag + "=" + file
		}
		args = append(args, arg)
	}
	return args
}

// platformLog is the log of a running platform.
type platformLog struct {
	mu    sync.Mutex // Guards lines.
	lines []string
}

func (l *platformLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *platformLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// wait waits until the log contains a message.
func (l *platformLog) wait(t *testing.T, message string) {
	t.Helper()
	testkit.Eventually(t, timeout, func() error {
		if !strings.Contains(l.text(), `"msg":"`+message+`"`) {
			return fmt.Errorf("the platform has not logged %q", message)
		}
		return nil
	})
}

// start runs the platform until the test ends. The log is shown if the test fails.
func (a *api) start(binary string, args []string) *platformLog {
	a.Helper()
	cmd := exec.CommandContext(a.Context(), binary, args...)
	cmd.Env = append(os.Environ(), "POD_NAME=one", "POD_NAMESPACE="+namespace)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it releases the Lease
	cmd.WaitDelay = timeout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		a.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		a.Fatal(err)
	}
	log, read := &platformLog{}, make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			log.add(s.Text())
		}
	}()
	a.Cleanup(func() {
		<-read // the context of the test has ended
		_ = cmd.Wait()
		if a.Failed() {
			a.Logf("the log of the platform:\n%s", log.text())
		}
	})
	return log
}

// serveWebApp waits until an instance is ready and its deletion with the Blueprint has completed.
func (a *api) serveWebApp() {
	a.Helper()
	blueprint := documents(a.T, read(a.T, "../examples/demo/webapps.yaml"))[0]
	if err := unstructured.SetNestedField(blueprint.Object, "webapps", "spec", "serviceAccountName"); err != nil {
		a.Fatal(err)
	}
	testkit.Eventually(a.T, timeout, func() error { return a.apply(blueprint) })
	webapp := documents(a.T, `
apiVersion: demo.example.com/v1
kind: WebApp
metadata: {name: hello, namespace: shop}
spec: {greeting: hello}`)[0]
	testkit.Eventually(a.T, timeout, func() error { return a.apply(webapp) })
	testkit.Eventually(a.T, timeout, func() error {
		found, err := a.dynamic.Resource(webapps).Namespace("shop").Get(a.Context(), "hello", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return requireReady(found)
	})
	if err := a.dynamic.Resource(blueprints).Delete(a.Context(), blueprint.GetName(), metav1.DeleteOptions{}); err != nil {
		a.Fatal(err)
	}
	testkit.Eventually(a.T, timeout, func() error {
		left, err := a.dynamic.Resource(blueprints).List(a.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("the Blueprint still exists: %v", left.Items[0].Object["status"])
		}
		return err
	})
}

// requireReady returns an error unless the condition Ready is True.
func requireReady(object *unstructured.Unstructured) error {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err == nil && !slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == "Ready" && condition["status"] == string(metav1.ConditionTrue)
	}) {
		err = fmt.Errorf("%s is not ready: %v", object.GetName(), conditions)
	}
	return err
}

// requireAllowed fails the test if a request was denied or, in a namespace, if a request for instances or children was
// sent for another one.
func (a *api) requireAllowed(calls []apiproxy.Call, namespaced bool) {
	a.Helper()
	watches := 0
	for _, c := range calls {
		if c.Status == http.StatusForbidden || c.Status == http.StatusUnauthorized {
			a.Errorf("denied with %d: %s %s (%s)", c.Status, c.Verb, c.Resource, c.Path)
		}
		if c.Verb != "watch" || c.Resource != "webapps" && c.Resource != "services" && c.Resource != "deployments" {
			continue
		}
		watches++
		if namespaced != (c.Namespace == "shop") {
			a.Errorf("a watch for another namespace: %s", c.Path)
		}
	}
	if watches < 3 {
		a.Errorf("got %d watches of instances and children", watches)
	}
}

// flowSchemas records by which FlowSchemas the API server has classified requests.
type flowSchemas struct {
	mu   sync.Mutex // Guards seen.
	seen map[string]map[string]bool
}

func (f *flowSchemas) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		sender := "the platform"
		if user := r.Header.Get("Impersonate-User"); user != "" {
			sender = user
		} else if apiproxy.CallOf(r).Resource == "leases" {
			sender = "the platform, for its Lease"
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.seen[sender] == nil {
			f.seen[sender] = map[string]bool{}
		}
		f.seen[sender][response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)] = true
		return response, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// requireFlowSchemas checks that requests were classified by the FlowSchemas of the chart. Until the API server has
// observed them, it uses the FlowSchema service-accounts.
func (a *api) requireFlowSchemas(schemas *flowSchemas) {
	a.Helper()
	uid := func(name string) string {
		found, err := a.kube.FlowcontrolV1().FlowSchemas().Get(a.Context(), name, metav1.GetOptions{})
		if err != nil {
			a.Fatal(err)
		}
		return string(found.UID)
	}
	others := uid("service-accounts")
	a.sendAs(account("shop", "default"), schemas)
	for sender, want := range map[string]string{
		"the platform":                "dynamic-controller",
		"the platform, for its Lease": "dynamic-controller-leader-election",
		account("shop", "webapps"):    "dynamic-controller-identities",
		account("shop", "default"):    "service-accounts", // not in flowControl.identities
	} {
		schemas.mu.Lock()
		for got := range schemas.seen[sender] {
			if got != uid(want) && got != others {
				a.Errorf("requests from %s were classified by %s", sender, got)
			}
		}
		if !schemas.seen[sender][uid(want)] {
			a.Errorf("requests from %s were not classified by %s (%s): %v", sender, want, uid(want), schemas.seen[sender])
		}
		schemas.mu.Unlock()
	}
}

// sendAs sends a request with impersonation as the administrator.
func (a *api) sendAs(user string, schemas *flowSchemas) {
	a.Helper()
	config := a.cluster.Config()
	config.Impersonate.UserName = user
	config.Wrap(schemas.wrap) // the wrapper is called after the header has been set
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		a.Fatal(err)
	}
	_, err = client.CoreV1().ConfigMaps("shop").Get(a.Context(), "any", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		a.Errorf("got the error %v, want Forbidden", err)
	}
}
