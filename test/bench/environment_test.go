package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

var described sync.Once

// describeRun prints the machine and the versions of a run once, as configuration lines for benchstat. Without an API
// server, config is nil.
func describeRun(b testing.TB, config *rest.Config) {
	b.Helper()
	described.Do(func() {
		printSetting("date", time.Now().UTC().Format(time.DateOnly))
		printSetting("cpus", strconv.Itoa(runtime.NumCPU()))
		printSetting("memory", totalMemory())
		printSetting("kernel", kernel())
		printSetting("go", strings.TrimPrefix(runtime.Version(), "go"))
		printSetting("kubernetes", serverVersion(b, config))
		for _, name := range []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime",
			"github.com/kubernetes-sigs/kro"} {
			printSetting(name[strings.LastIndexByte(name, '/')+1:], moduleVersion(name))
		}
	})
}

// serverVersion returns the version of the API server. Without a config, it returns an empty string.
func serverVersion(b testing.TB, config *rest.Config) string {
	b.Helper()
	if config == nil {
		return ""
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	server, err := client.ServerVersion()
	if err != nil {
		b.Fatal(err)
	}
	return server.GitVersion
}

func printSetting(name, value string) {
	if value != "" {
		fmt.Printf("%s: %s\n", name, value)
	}
}

// moduleVersion returns the version of a module in go.mod, or an empty string. Test binaries contain no versions.
func moduleVersion(path string) string {
	modules, _ := os.ReadFile("go.mod")
	for line := range strings.Lines(string(modules)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == path {
			return words[1]
		}
	}
	return ""
}

// kernel returns the name and the version of the operating system's kernel, or an empty string.
func kernel() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return "Linux " + strings.TrimSpace(string(release))
}

// totalMemory returns the size of the machine's memory, or an empty string.
func totalMemory() string {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(info)) {
		if kilobytes, found := strings.CutPrefix(line, "MemTotal:"); found {
			n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(kilobytes), " kB"))
			return fmt.Sprintf("%d GiB", (n+1<<19)>>20)
		}
	}
	return ""
}
