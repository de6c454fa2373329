//go:build kind

package kind

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podLog contains the JSON lines of a replica's log.
type podLog []logLine

type logLine struct {
	Time    time.Time `json:"-"`
	Millis  float64   `json:"ts"` // milliseconds since the Unix epoch
	Message string    `json:"msg"`
	Term    int64     `json:"term"`
}

// logSince returns the lines that the Pod's running container has logged since the given time.
func (e *env) logSince(pod string, then time.Time) podLog {
	e.Helper()
	var raw []byte
	e.eventually(timeout, "the log of "+pod+" can be read", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var err error
		raw, err = e.kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
			SinceTime: new(metav1.NewTime(then)), // Sent in whole seconds.
		}).DoRaw(ctx)
		return err
	})
	var lines podLog
	for text := range strings.Lines(string(raw)) {
		var line logLine
		if json.Unmarshal([]byte(text), &line) != nil {
			continue
		}
		line.Time = time.UnixMicro(int64(line.Millis * 1000))
		if !line.Time.Before(then) {
			lines = append(lines, line)
		}
	}
	return lines
}

// first returns the first line with the given message.
func (l podLog) first(message string) (line logLine, ok bool) {
	for _, line := range l {
		if line.Message == message {
			return line, true
		}
	}
	return logLine{}, false
}
