package main

import (
	"context"
	"io"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	formatJSON    = "json"
	formatConsole = "console"
	// maxVerbosity is the highest verbosity that fits into zap's levels.
	maxVerbosity = 127
)

// newLogger returns a logger that writes one line per message to w.
func newLogger(w io.Writer, format string, level zapcore.LevelEnabler) logr.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.EncodeLevel = func(level zapcore.Level, enc zapcore.PrimitiveArrayEncoder) {
		zapcore.LowercaseLevelEncoder(max(level, zapcore.DebugLevel), enc) // zap has no names for lower levels
	}
	encoder := zapcore.NewJSONEncoder(config)
	if format == formatConsole {
		encoder = zapcore.NewConsoleEncoder(config)
	}
	return zapr.NewLogger(zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level)))
}

// warningLogger logs warnings of the API server, for example about deprecated versions. It logs at V(1), because the
// API server can send a warning with each response.
type warningLogger struct{}

func (warningLogger) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	logr.FromContextOrDiscard(ctx).V(1).Info("Warning from the API server", "warning", text)
}
