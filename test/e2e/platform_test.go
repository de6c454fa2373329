package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// Each round injects the faults of TestL1_L2_L3_Rounds into replicas of the platform, or faults in the webhook, while
// the instances of a Blueprint, their children and the existing objects that they refer to change at random. At the end
// of a round, the children and the statuses must correspond to the instances and to the existing objects, and nothing
// else must have been written. The webhook never refuses a valid Blueprint. Each invalid Blueprint is refused by the
// webhook, or stored and then rejected by the platform. At the end of a round, the webhook refuses an invalid
// Blueprint.
func TestPlatform_Rounds(t *testing.T) {
	faults := append(slices.Clone(faults), webhookFaults...)
	faults = slices.DeleteFunc(faults, func(f fault) bool { return f.needsHistory })
	inRounds(t, func(t *testing.T, rounds []round) {
		f := newPlatform(t)
		gardens := newGardens(f)
		for _, round := range rounds {
			stop := gardens.startChanges(round.random)
			leader := target{f.awaitHolder(), leaseName}
			f.injectFaults(leader, round.number, drawRound(round.random, faults, f.leases()))
			stop()
			gardens.settle()
		}
		for range f.members {
			f.terminate(f.awaitHolder())
		}
	})
}

// newPlatform starts three replicas of the platform.
func newPlatform(t *testing.T) *fleet {
	t.Helper()
	f := newMembers(t, 3)
	binary := filepath.Join(t.TempDir(), "dynamic-controller")
	build := exec.Command("go", "build", "-C", "../../cmd/dynamic-controller", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // As in the image.
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the platform: %v\n%s", err, out)
	}
	system := f.namespace + "-system"
	f.createNamespace(system)
	f.command = func(m *member) *exec.Cmd {
		cmd := exec.Command(binary, "run", "-v", "1", "--kubeconfig", f.proxied(m), "--allow-platform-identity",
			"--namespace", system, "--health-probe-bind-address", "0",
			"--webhook-bind-address", "127.0.0.1:0", "--webhook-name", f.namespace,
			"--max-retry-delay", "500ms", // The API server is unavailable only for a few seconds.
			"--leader-elect-resource-name", leaseName, "--leader-elect-resource-namespace", f.namespace,
			"--leader-elect-lease-duration", leaseDuration.String(), "--leader-elect-renew-deadline", renewDeadline.String(),
			"--leader-elect-retry-period", retryPeriod.String())
		cmd.Env = append(os.Environ(), "POD_NAME="+m.processName()) // The identity in the lease begins with it.
		return cmd
	}
	t.Cleanup(f.reportLogs)
	f.installWebhook(system)
	f.startAll()
	return f
}

// proxied returns a kubeconfig for the proxy of a member.
func (f *fleet) proxied(m *member) string {
	f.Helper()
	config, err := clientcmd.LoadFromFile(f.cluster.Kubeconfig())
	f.noError(err)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + m.proxy.Addr()
	}
	path := filepath.Join(f.dir, m.name+".kubeconfig")
	f.noError(clientcmd.WriteToFile(*config, path))
	return path
}

// awaitHolder waits until a running member holds the lease, and returns the member.
func (f *fleet) awaitHolder() (holder *member) {
	f.Helper()
	f.eventually("a replica holds the lease", func() error {
		f.checkProcesses()
		lease, err := f.clients.CoordinationV1().Leases(f.namespace).Get(f.Context(), leaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, m := range f.members {
			if f.holds(m, lease) {
				holder = m
				return nil
			}
		}
		return fmt.Errorf("it is held by %q", ptr.Deref(lease.Spec.HolderIdentity, ""))
	})
	return holder
}

func (f *fleet) holds(m *member, lease *coordinationv1.Lease) bool {
	return !m.process.hasExited() && strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), m.processName()+"_")
}
