// Components is every Kubernetes program of a node image in one binary: kubelet, kubeadm, kubectl, the control plane,
// kube-proxy, etcd, CoreDNS and the node's network agent. The name it is started by selects the program. One binary
// compiles and links the code that these programs share once instead of nine times.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coredns/coredns/coremain"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubeadmerrors "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"

	// What kubeadm's Corefile uses. CoreDNS's own list of plugins includes the SDKs of several clouds.
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	_ "time/tzdata" // time zones of CronJobs
)

// Programs end the process themselves when they fail.
var programs = map[string]func(){
	"kube-apiserver":          func() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) },
	"kube-controller-manager": func() { os.Exit(cli.Run(controllermanager.NewControllerManagerCommand())) },
	"kube-scheduler":          func() { os.Exit(cli.Run(scheduler.NewSchedulerCommand())) },
	"kube-proxy":              func() { os.Exit(cli.Run(proxy.NewProxyCommand())) },
	"kubelet":                 runKubelet,
	"kubeadm":                 func() { kubeadmerrors.HandleError(kubeadm.Run()) },
	"kubectl":                 runKubectl,
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"coredns":                 coremain.Run,
	"node-network":            runNodeNetwork,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, found := programs[name]
	if !found {
		names := make([]string, 0, len(programs))
		for name := range programs {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s: start this binary by one of these names: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	run()
}

func runKubectl() {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
