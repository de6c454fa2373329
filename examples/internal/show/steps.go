package main

import (
	"context"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// step performs an action or waits for a condition.
type step func(ctx context.Context, s *environment) error

// apply applies the objects in a manifest.
func apply(file string) step {
	return func(ctx context.Context, s *environment) error {
		objects, err := s.read(file)
		if err != nil {
			return err
		}
		s.printf("$ kubectl apply -f %s", filepath.Join("examples", file))
		for _, obj := range objects {
			if err := s.apply(ctx, obj); err != nil {
				return fmt.Errorf("apply %s: %w", file, err)
			}
			s.applied = append(s.applied, obj)
		}
		return nil
	}
}

// remove deletes the objects in a manifest and waits until they no longer exist.
func remove(file string) step {
	return func(ctx context.Context, s *environment) error {
		objects, err := s.read(file)
		if err != nil {
			return err
		}
		s.printf("$ kubectl delete -f %s", filepath.Join("examples", file))
		for _, obj := range objects {
			if err := s.delete(ctx, obj); err != nil {
				return fmt.Errorf("delete %s: %w", file, err)
			}
		}
		return nil
	}
}

// label sets a label on the objects in a manifest, or removes it if the value is empty.
func label(file, key, value string) step {
	return func(ctx context.Context, s *environment) error {
		objects, err := s.read(file)
		if err != nil {
			return err
		}
		change, json := key+"=", fmt.Sprintf("%q", value)
		if value == "" {
			change, json = key+"-", "null"
		} else {
			change += value
		}
		s.printf("$ kubectl label -f %s %s", filepath.Join("examples", file), change)
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, json)
		for _, obj := range objects {
			resource, err := s.resource(ctx, obj)
			if err != nil {
				return err
			}
			_, err = resource.Patch(ctx, obj.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// start starts an example.
func start(example string) step {
	return func(_ context.Context, s *environment) error {
		s.printf("$ bin/examples/%s &", example)
		return s.run(example, example)
	}
}

// startAs starts an example under a name. Later steps use this name, which is also the POD_NAME of the example.
func startAs(name, example string) step {
	return func(_ context.Context, s *environment) error {
		s.printf("$ POD_NAME=%s bin/examples/%s &", name, example)
		return s.run(example, name)
	}
}

// prints waits until a process has printed a line with the text. It considers only lines after the one that the
// previous prints step found.
func prints(name, text string) step {
	return func(ctx context.Context, s *environment) error {
		if err := s.processes[name].waitForLine(ctx, text); err != nil {
			return fmt.Errorf("%s has not printed %q: %w", name, text, err)
		}
		return nil
	}
}

// hasNotPrinted checks that a process has not printed the text so far.
func hasNotPrinted(name, text string) step {
	return func(_ context.Context, s *environment) error {
		if s.processes[name].hasPrinted(text) {
			return fmt.Errorf("%s has unexpectedly printed %q", name, text)
		}
		return nil
	}
}

// stop stops a process with SIGTERM, as Kubernetes stops a Pod.
func stop(name string) step {
	return func(_ context.Context, s *environment) error {
		s.printf("$ kill %s", name)
		p := s.processes[name]
		p.stop()
		if !p.cmd.ProcessState.Success() {
			return fmt.Errorf("%s ended with %s", name, p.cmd.ProcessState)
		}
		s.printf("# %s ended with exit code 0", name)
		return nil
	}
}

// kill kills a process, so that it cannot release its leases.
func kill(name string) step {
	return func(_ context.Context, s *environment) error {
		s.printf("$ kill -9 %s", name)
		p := s.processes[name]
		if err := p.cmd.Process.Kill(); err != nil {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		<-p.ended
		return nil
	}
}
