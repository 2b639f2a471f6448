"""What a host reports about itself to operators: logs, traces and a summary at its end."""
